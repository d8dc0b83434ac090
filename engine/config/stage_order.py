"""The stages of uploads in their order, which is part of the numbers: who makes them for which section of a config."""

# On hosts the first acts first; at the server the first is asked first before a phase, and last after it.
STAGES = (
    ("attack", "shoal.engine.stages.hostile.hostile:make"),
    # Before uploads are compressed, so that no size is of a client's weights.
    ("privacy", "shoal.engine.stages.privacy.hidden_uploads:make"),
    ("communication", "shoal.engine.stages.compression.compression:make"),
    ("privacy", "shoal.engine.stages.privacy.hidden_clients:make"),
    ("aggregation", "shoal.engine.stages.robust.robust:make"),
    ("secure", "shoal.engine.stages.secure.hidden_sums:make"),
    ("digests", "shoal.engine.stages.digests.digests:make"),
)
