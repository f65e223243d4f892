"""Reads and writes TFRecord: framed records with checksums, mostly tf.train.Example messages. See README.md here."""
