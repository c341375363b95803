"""The main job on a small scale: a decoder learns text while headwatch watches it."""
