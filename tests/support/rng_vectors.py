"""A test vector of SplitMix64 by address, which every implementation must reproduce."""

NAME = "batches"

VECTOR = (
    # seed, (worker, version, epoch, position), the 64 bits of this address
    (0, (0, 0, 0, 0), 0x78FCE8B25E2A673B),
    (7, (3, 1, 0, 2), 0x94D3EFA7138BC0B5),
    (2**63 + 5, (99, 12, 3, 511), 0xA22B68E7FC6A5A62),
    (2**64 - 1, (1000, 1048576, 7, 3000), 0xE04518C2C7CED9F8),
)
