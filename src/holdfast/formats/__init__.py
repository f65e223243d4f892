"""File formats: each a folder of its own with reader, writer, encoding, index, verify and salvage."""
