"""How bytes travel between parties: in one process, over gRPC, or over MPI.

interface      sessions and pulls, as every transport offers them
admission      who may connect (allow list) and how many pulls are served at once
pacing         sending no faster than an emulated link
dispatcher     the thread and the base class that the memory and MPI transports share
memory         all parties in one process
grpc           processes on one or many machines, under mutual TLS
grpc_calls     open calls per caller, half-open calls, refusals that come late
grpc_server    its listening side: sessions and pulls
grpc_client    its calling side: a session that reconnects, and pulls with a stall detector
watchdog       cancels calls that make no progress
grpc_settings  options of gRPC, and what its errors mean
mpi            the ranks of an MPI job
mpi_endpoint   the thread of a rank that sends and receives frames
mpi_router     which frame belongs to which listener or conversation
mpi_pulls      models over MPI frames
"""
