"""How bytes travel: in one process, over gRPC, or over MPI; all behind `transport.base`."""
