"""`scripts/real-engine`: installs a real SGLang for the CPU and holds the stand-in to it. Standard library only."""
