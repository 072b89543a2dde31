"""Recognise a pull whose header was seen before, without decoding it again. Deleting this folder costs only speed."""
