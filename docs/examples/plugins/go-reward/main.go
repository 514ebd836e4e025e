// A reward in Go: 1 where the reply has a word.
//
// Build it with build.sh, which generates the contract's code from what `rollout plugins contract` prints.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "example.com/go-reward/contract"
)

const messageBytesMax = 64 << 20

type plugin struct {
	pb.UnimplementedPluginServer
	pb.UnimplementedRewardServer
	word string
}

func (p *plugin) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{Contract: 1, Name: "go-reward", Version: "0.1.0", Kind: "reward"}, nil
}

func (p *plugin) Configure(_ context.Context, asked *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	p.word = asked.Parameters["word"]
	if p.word == "" {
		failure := &pb.Failure{Code: "empty-word", Message: "word: expected a text that is not empty"}
		return &pb.ConfigureResponse{Failure: failure}, nil
	}
	return &pb.ConfigureResponse{}, nil
}

func (p *plugin) Score(_ context.Context, asked *pb.ScoreRequest) (*pb.ScoreResponse, error) {
	answer := &pb.ScoreResponse{}
	for _, sample := range asked.Samples {
		score := &pb.Score{}
		if strings.Contains(strings.ToLower(sample.Reply), p.word) {
			score.Value = 1
		}
		answer.Scores = append(answer.Scores, score)
	}
	return answer, nil
}

func main() {
	socket := os.Getenv("ROLLOUT_PLUGIN_SOCKET")
	os.Remove(socket)    // of a process before, where a container is started again
	syscall.Umask(0o007) // who calls is of the socket's group
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax))
	served := &plugin{}
	pb.RegisterPluginServer(server, served)
	pb.RegisterRewardServer(server, served)
	healthpb.RegisterHealthServer(server, health.NewServer())
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	go func() {
		<-told
		server.GracefulStop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
