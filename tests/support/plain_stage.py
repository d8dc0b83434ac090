"""A stage of uploads that changes every number a little."""

import shoal
from shoal.algorithms.protocol import Upload


class Halved(shoal.Stage):
    """Half of the change of each mean."""

    def at_client(self, upload: Upload, at: shoal.AtClient) -> Upload:
        entries = {name: (t + at.received[name]) / 2 for name, t in upload.entries.items()}
        return Upload(entries, upload.weight, upload.upload_bytes)
