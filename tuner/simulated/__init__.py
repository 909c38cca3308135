"""The simulated host: a machine with GPUs that anybody has, reached by SSH like any other.

    python -m tuner.simulated --preset h200x2-shm

starts an SSH server on the loopback, in a process of its own, which ends when nobody has used it for a while. What
``python3 -m sglang.launch_server`` runs on it is a stand-in (`standin`): a real process tree with SGLang's titles, log
lines, endpoints, failures and signals, whose token times are those of a performance model (`machine`, `timing`).
Nothing downstream knows, or needs to know, that it is simulated; only reports read it, to say so.
"""
