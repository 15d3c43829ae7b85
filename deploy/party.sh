#!/bin/sh
# Start one party of a testbed: `party.sh coordinator|observer|worker [OPTION...]`. Before the run,
# `party.sh authority` creates certificates and tokens; after it, `party.sh check` audits the run.
# This is the entry point of the image. Any other word is a dystop command: `party.sh list keys`.
#
# EXPERIMENT    the experiment's file                          /etc/dystop/experiment.toml
# STATE         everything that outlives a restart             /var/lib/dystop
# RUN           name of the run folder                         lab
# COORDINATOR   address of the coordinator                     coordinator:7000
# LISTEN        where this party listens                       own address, port 7000 or 7001
# ENROL         where tokens become certificates               coordinator:7002
# TOKENS        folder with ca.crt and NAME.token              STATE/tokens
# CERTIFICATES  folder with certificates, in place of tokens   none
# HEALTH        file for `dystop health`                       /run/dystop/health.json
# WORKERS       number of workers; this one's name then follows from POD_NAME (NAME-3: w03). Without
#               it: the name of the one token in TOKENS
# STAY          not empty: sleep after the end of the run, where a restart would follow an exit
set -eu
umask 077

STATE=${STATE:-/var/lib/dystop}
EXPERIMENT=${EXPERIMENT:-/etc/dystop/experiment.toml}
RUN=${RUN:-lab}
COORDINATOR=${COORDINATOR:-coordinator:7000}
ENROL=${ENROL:-coordinator:7002}
TOKENS=${TOKENS:-$STATE/tokens}
CERTIFICATES=${CERTIFICATES:-}
HEALTH=${HEALTH:-/run/dystop/health.json}

own_address() {
    address=${POD_IP:-$(hostname -i | cut -d ' ' -f 1)}
    case $address in
    *:*) echo "[$address]" ;;
    *) echo "$address" ;;
    esac
}

# Run a command in place of this script; with STAY sleep after it, and pass SIGTERM on.
run() {
    [ -n "${STAY:-}" ] || exec "$@"
    "$@" &
    child=$!
    trap 'kill -TERM "$child"; wait "$child"; exit $?' TERM INT
    wait "$child"
    sleep infinity &
    child=$!
    trap 'kill "$child"; exit 0' TERM INT
    wait "$child"
}

# Copy the mounted certificates where only this user can read them. Registers are copied once: the
# coordinator's own copy also knows what was enrolled and revoked since.
copy_certificates() {
    mkdir -p "$1"
    for file in "$CERTIFICATES"/*.crt "$CERTIFICATES"/*.key; do
        [ ! -e "$file" ] || cp -L "$file" "$1/"
    done
    for file in "$CERTIFICATES"/*.json; do
        copy=$1/${file##*/}
        [ ! -e "$file" ] || [ -e "$copy" ] || cp -L "$file" "$copy"
    done
}

# Get the certificate of a party into a folder: from CERTIFICATES, or once by its token.
get_certificate() {
    if [ -n "$CERTIFICATES" ]; then
        copy_certificates "$2"
    elif [ ! -f "$2/$1.crt" ]; then
        dystop pki join "$1" --token-file - --ca "$TOKENS/ca.crt" --from "$ENROL" --folder "$2" \
            < "$TOKENS/$1.token"
    fi
    chmod 600 "$2/$1.key"  # a volume that belongs to a group may have opened it
}

# Set `name` to the name of this worker.
choose_name() {
    if [ -n "${WORKERS:-}" ]; then
        last=$((WORKERS - 1))
        width=${#last}
        [ "$width" -ge 2 ] || width=2
        name=$(printf "w%0${width}d" "${POD_NAME##*-}")
        return
    fi
    set -- "$TOKENS"/w*.token
    if [ $# -ne 1 ] || [ ! -f "$1" ]; then
        echo "party.sh: $TOKENS must hold the token of one worker, such as w00.token" >&2
        exit 2
    fi
    name=$(basename "$1" .token)
}

# Give each party a folder with its own token, so that it can be the only one that it sees.
separate_tokens() {
    for token in "$TOKENS"/*.token; do
        [ -f "$token" ] || continue
        folder=${token%.token}
        mkdir -p "$folder"
        mv "$token" "$folder/"
        cp "$TOKENS/ca.crt" "$folder/"
    done
}

role=${1:-}
case $role in
authority)
    [ -f "$STATE/pki/ca.key" ] || dystop pki init --folder "$STATE/pki"
    [ -f "$STATE/pki/coordinator.crt" ] || dystop pki issue coordinator --folder "$STATE/pki"
    dystop pki tokens "$EXPERIMENT" --folder "$STATE/pki" --out "$TOKENS"
    separate_tokens
    ;;
coordinator)
    shift
    [ -z "$CERTIFICATES" ] || copy_certificates "$STATE/pki"
    chmod 600 "$STATE"/pki/*.key
    run dystop coordinator "$EXPERIMENT" --pki "$STATE/pki" --out "$STATE/runs/$RUN" \
        --listen "${LISTEN:-$(own_address):7000}" --health "$HEALTH" "$@"
    ;;
observer)
    shift
    get_certificate observer "$STATE/pki"
    run dystop observer "$EXPERIMENT" --pki "$STATE/pki" --coordinator "$COORDINATOR" \
        --health "$HEALTH" "$@"
    ;;
worker)
    shift
    mkdir -p "$STATE/workers"
    choose_name
    get_certificate "$name" "$STATE/workers/$name/pki"
    run dystop worker "$EXPERIMENT" --name "$name" --pki "$STATE/workers/$name/pki" \
        --folder "$STATE/workers/$name" --coordinator "$COORDINATOR" \
        --listen "${LISTEN:-$(own_address):7001}" --health "$HEALTH" "$@"
    ;;
check)
    for log in "$STATE"/workers/w*/history.jsonl; do
        [ -d "$STATE/runs/$RUN" ] || break
        folder=${log%/*}
        copy=$STATE/runs/$RUN/workers/${folder##*/}
        mkdir -p "$copy"
        cp "$log" "$copy/"
    done
    exec dystop check "$STATE/runs/$RUN"
    ;;
*)
    exec dystop "$@"
    ;;
esac
