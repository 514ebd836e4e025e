#!/bin/sh
# Writes the contract, generates its Go code, and builds ./plugin. Needs go, protoc (or Python's grpcio-tools) and rollout.
set -eu
cd "$(dirname "$0")"
mkdir -p contract bin
rollout plugins contract > contract/plugin.proto
GOBIN="$PWD/bin" go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN="$PWD/bin" go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
protoc=protoc
command -v protoc > /dev/null || protoc="python -m grpc_tools.protoc"
PATH="$PWD/bin:$PATH" $protoc -I contract \
  --go_out=contract --go_opt=paths=source_relative,Mplugin.proto=example.com/go-reward/contract \
  --go-grpc_out=contract --go-grpc_opt=paths=source_relative,Mplugin.proto=example.com/go-reward/contract \
  plugin.proto
go mod tidy
go build -o plugin .
