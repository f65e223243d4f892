"""Encoded pictures as arrays: Pillow's pixels, quicker where the file is of a common kind.

decode.py   which way a picture goes; Pillow for all that has no quicker one
jpeg.py     JPEG by simplejpeg, where it is installed: straight into the array, without Pillow's two copies
png.py      PNG by zlib and the compiled unfilter, which does a pixel at a time where Pillow does a byte
"""
