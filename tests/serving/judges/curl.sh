#!/bin/sh
# Every endpoint by curl; arguments: the server's URL, and a folder for what comes. Ends with the first that does not answer as it should.
set -eu
url=$1 folder=$2
ask() { # STATUS METHOD PATH [BODY]
    got=$(curl -sS -o "$folder/answer" -w '%{http_code}' -X "$2" ${4+--data-binary "$4"} "$url$3")
    [ "$got" = "$1" ] || { echo "$2 $3: expected $1, got $got: $(cat "$folder/answer")" >&2; exit 1; }
}
ask 200 GET /v2
ask 200 GET /v2/health/live
ask 200 GET /v2/health/ready
ask 200 GET /v2/models/rows
ask 200 GET /v2/models/rows/versions/1
ask 200 GET /v2/models/rows/ready
ask 200 GET /v2/models/rows/versions/1/ready
ask 200 GET /v2/models/rows/config
ask 200 GET /v2/models/rows/stats
ask 200 GET /v2/models/stats
ask 200 POST /v2/repository/index '{"ready": true}'
ask 200 POST /v2/repository/models/triton/unload
ask 404 GET /v2/models/triton/ready
ask 200 POST /v2/repository/models/triton/load
body='{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.5]}], "outputs": [{"name": "z"}]}'
ask 200 POST /v2/models/rows/versions/1/infer "$body"
ask 200 POST /v2/models/rows/infer "$body"
grep -q '"name":"z","datatype":"FP32","shape":\[1,1\],"data":\[0.5\]' "$folder/answer"
ask 400 POST /v2/models/rows/infer '{'
ask 404 POST /v2/models/nix/infer "$body"
ask 405 GET /v2/models/rows/infer
printf '%s' "$body" | gzip | curl -sSf -H 'Content-Encoding: gzip' --compressed --data-binary @- "$url/v2/models/rows/infer" >"$folder/answer"
grep -q '\[0.5\]' "$folder/answer"
