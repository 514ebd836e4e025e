// Command etcd is one etcd member on loopback: the part of etcd's own command that a test needs.
package main

import (
	"flag"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// More than etcd's 2 GiB: thousands of runs and their children, each with its past of five minutes.
const spaceBytes = 8 << 30

func mustParse(raw string) []url.URL {
	parsed, err := url.Parse(raw)
	if err != nil {
		log.Fatal(err)
	}
	return []url.URL{*parsed}
}

func main() {
	dir := flag.String("data-dir", "", "folder of the store")
	client := flag.String("client-url", "", "where the API server connects")
	peer := flag.String("peer-url", "", "where other members would connect")
	unsafe := flag.Bool("unsafe-no-fsync", false, "never fsync: a test's store need not survive the machine")
	flag.Parse()

	config := embed.NewConfig()
	config.Dir = *dir
	config.ListenClientUrls = mustParse(*client)
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = mustParse(*peer)
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = *unsafe
	config.QuotaBackendBytes = spaceBytes
	config.LogLevel = "warn"

	member, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	defer member.Close()
	<-member.Server.ReadyNotify()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
