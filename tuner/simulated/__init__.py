"""The stand-in SGLang and its host: a process of its own, reached by SSH like any other."""
