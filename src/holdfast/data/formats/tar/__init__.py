"""Reads and writes tar files in WebDataset's layout: members with one name and different extensions are one sample.

See README.md in this folder."""
