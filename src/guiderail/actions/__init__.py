"""Actions: the algebra, its bounds and wire form, and the codecs that read and write it as model text."""
