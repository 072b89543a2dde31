"""Notice damaged bytes: checksums of blocks, the scrubber that compares them, blocks withdrawn and mended."""
