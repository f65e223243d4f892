"""The order of all samples of an epoch, by arithmetic alone: no file is opened."""
