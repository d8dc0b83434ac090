"""What FedGTA's upload costs a client of papers100M's kind, by part: tile by tile, and equation by equation with torch.

    python benchmarks/uploads.py [--quick] [--nodes 22000] [--degree 15 29] [--model gamlp] [--hidden 64] [--repeats 9]

One synthetic client, 172 classes, 128 features, so many neighbours each as papers100M's nodes have inside one of 5,000
parts (15) or everywhere (29). One thread, the parts interleaved, median and range. A new host's labels are seeds: five
steps, raw and central moments of orders 1 to 6 after each, the confidence after the last. `all in one block` is the
forward pass over 65,536 rows at a time, which was ours until it was cut into blocks that stay in the cache; the torch
upload is the sum of that forward pass, of the seed, and of the three parts below. Row sums, scalings and weights of the
seed belong to `propagation`, but torch's rescaled rows to its `moments`. Errors are of the moments, against float64.
"""
