"""A line about each dataset: what its items are, and where its files lie below `data.root`."""

# Names of datasets, what they are, and their files.
SUMMARIES = (
    ("digits", "1,797 handwritten digits, 64 features, a nearest-neighbour graph (data.options.neighbors)"),
    ("cora citeseer pubmed", "Planetoid's papers that cite each other (planetoid/NAME/raw)"),
    ("computers photo", "Amazon's products that are bought together (amazon/NAME/raw)"),
    ("cs physics", "Coauthor's authors (coauthor/NAME/raw)"),
    ("flickr reddit", "GraphSAINT's Flickr, GraphSAGE's Reddit (NAME/raw)"),
    ("files", "your own graph at data.path: arrays, CSV and Parquet tables, or a table of molecules"),
    (
        "twitch-de twitch-en twitch-es twitch-fr twitch-pt twitch-ru twitch-tw",
        "MUSAE's Twitch, a graph a language, the same 3,170 features (musae/twitch/CODE)",
    ),
    (
        "chameleon crocodile squirrel",
        "MUSAE's pages of Wikipedia; target: regression: log10 of a page's monthly visits (musae/NAME)",
    ),
    ("blogcatalog", "10,312 bloggers without features; target: multilabel: 39 groups (blogcatalog)"),
    ("heco-acm", "papers, authors and subjects in HeCo's files; labels of papers (heco/acm)"),
    ("heco-dblp", "authors, papers, venues and terms in HeCo's files; labels of authors (heco/dblp)"),
    (
        "acmv9 dblpv7",
        "ACDNE's citation archives: the same 6,775 words, five areas; papers of two areas or none are dropped (acdne)",
    ),
    ("cornell texas wisconsin actor", "web pages and actors in Geom-GCN's files, heterophilous (NAME/raw)"),
    (
        "roman-empire amazon-ratings minesweeper tolokers questions",
        "a heterophilous graph (NAME, with _ for -, /raw)",
    ),
    (
        "penn94 reed98 amherst41 cornell5 johnshopkins55 genius",
        "LINKX's graphs, heterophilous, without a split (NAME/raw or linkx/NAME/raw)",
    ),
    ("nci1", "TU's 4,110 molecules (tu/NCI1/raw)"),
    ("proteins", "TU's 1,113 proteins (tu/PROTEINS/raw)"),
    ("imdb-binary", "TU's 1,000 circles of actors (tu/IMDB-BINARY/raw)"),
    ("collab", "TU's 5,000 circles of authors (tu/COLLAB/raw, or DGCNN's tu_text/COLLAB.zip)"),
    (
        "ogbg-molhiv ogbg-molbace ogbg-molbbbp",
        "OGB's molecules with one label of two classes, split by scaffolds (NAME, with _ for -: raw and split)",
    ),
    (
        "ogbg-molesol ogbg-molfreesolv ogbg-mollipo",
        "OGB's molecules with a number: target: regression (NAME, with _ for -: raw and split)",
    ),
    (
        "ogbg-molsider ogbg-moltox21 ogbg-moltoxcast ogbg-molclintox ogbg-molmuv ogbg-molpcba ogbg-molchembl",
        "OGB's molecules with 2 to 1,310 labels: target: multilabel (NAME, with _ for -: raw and split)",
    ),
    (
        "ogbn-arxiv ogbn-products ogbn-papers100m",
        "OGB's raw files, read in blocks under engine.memory_limit (NAME, with _ for -)",
    ),
    (
        "arxiv-like products-like papers100m-like",
        "a synthetic twin with the original's counts times data.options.scale; power law, communities, homophily 0.65, "
        "0.8, 0.6 (our assumption)",
    ),
    ("sbm", "a synthetic community graph"),
    ("sbm-graphs", "many of them with one label each: a graph of class c has c + 1 communities"),
    (
        "induced-node induced-edge induced-graph",
        "small graphs cut out of data.options.base around nodes, edges, or groups of nodes of one class",
    ),
)
ABOUT: dict[str, str] = {name: about for names, about in SUMMARIES for name in names.split()}
