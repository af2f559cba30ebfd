#!/bin/sh
# Make the secret `tokens` of what a running coordinator has: `join` for agents, `client` for gateways. Run it again after a rotation.
set -eu
umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
kubectl --namespace bbgrap rollout status statefulset/coordinator --timeout 5m
at_coordinator() { kubectl --namespace bbgrap exec coordinator-0 -- "$@"; }
at_coordinator cat /state/coordinator/keys/join.token >"$folder/join"
if at_coordinator bbgrap token list | grep -q '^gateway .* valid'; then
    at_coordinator bbgrap token rotate gateway >"$folder/client"
else
    at_coordinator bbgrap token create gateway --role client >"$folder/client"
fi
kubectl --namespace bbgrap create secret generic tokens --from-file "$folder/join" --from-file "$folder/client" --dry-run=client --output yaml |
    kubectl apply --filename -
