"""How bytes travel: in one process, over gRPC, or over MPI; all behind `wire.interface`.

door           who may come in at all: the roster, with the certificates that it names
gate           who may fetch at the moment: counted before anything is allocated
pacing         sending no faster than an emulated link
switched       what memory and MPI share: listening and dialling at a switchboard
memory         all parties in one process
hub            its switchboard
grpc           processes on one or many machines, under mutual TLS
grpc_serving   its listening side: sessions and pulls
grpc_calling   its calling side: one session kept open, and pulls under a watchdog
grpc_settings  how gRPC is set up, and what its errors mean
tls            credentials, and who the other side is
mpi            all ranks of an MPI job
mpi_line       the thread of a rank that sends and receives frames
mpi_switch     who listens on which port, and who talks with whom
mpi_pulls      models over that line
"""
