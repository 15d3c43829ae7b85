"""The testbed's shell: real workers, real sockets, the same decisions as the simulator."""
