#!/bin/sh
# Writes the contract, gets the packages, and compiles into dist. Needs node 20 or newer, npm and rollout.
set -eu
cd "$(dirname "$0")"
rollout plugins contract > plugin.proto
npm install --no-audit --no-fund --no-package-lock
npm run build
