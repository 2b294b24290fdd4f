#!/bin/sh
# Ask about a picture over HTTP: a JSON document with the picture in base64, answered as server-sent events.
#
#   client/chat_http.sh client/pictures/chart.png "Which bar is the tallest?" [http://127.0.0.1:8000]
#
# Needs curl, base64 and python3 (for the quoting only).
set -eu
[ $# -ge 2 ] || { echo "usage: $0 PICTURE QUESTION [URL]" >&2; exit 2; }
picture=$1 question=$2 url=${3:-http://127.0.0.1:8000}

base64 <"$picture" | tr -d '\n' | python3 -c '
import json, sys
content = [{"type": "image", "data": sys.stdin.read()}, {"type": "text", "text": sys.argv[1]}]
document = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
print(json.dumps({"request": json.dumps(document)}))
' "$question" |
curl -sS --no-buffer --fail-with-body -H 'Content-Type: application/json' --data-binary @- \
    "$url/v2/models/chat/generate_stream"
