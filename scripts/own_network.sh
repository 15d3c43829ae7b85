#!/bin/sh
# Run a command that creates network namespaces, without root:
#
#   scripts/own_network.sh dystop testbed --netns
#
# The command runs as root of a user namespace with a network of its own, so it reaches only what it
# starts. Files keep their owner. If the caller is root already, or if the kernel forbids user
# namespaces, the command runs as it is.
set -eu

inside() {
    # `ip netns` keeps its names in /run, which belongs to the real root: here /run is empty.
    exec unshare --user --map-root-user --net --mount sh -c \
        'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"' sh "$@"
}

if [ "$(id -u)" = 0 ] || ! (inside true) 2>/dev/null; then
    exec "$@"
fi
inside "$@"
