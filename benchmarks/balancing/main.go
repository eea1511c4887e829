// Command balancing makes short calls to several servers by one policy of grpc-go, and prints how long they took.
//
// It is the client of benchmarks/balancing.py. The calls come by chance, whether earlier ones have ended or not; those of
// the first seconds are not counted. The result is one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	reasondv1 "reasond/clients/go"
)

type result struct {
	// Milliseconds of each call that succeeded.
	TookMs []float64 `json:"took_ms"`
	// Calls that ended at each server.
	Calls  map[string]int `json:"calls"`
	Failed int            `json:"failed"`
}

func main() {
	targets := flag.String("targets", "", "addresses of the servers, joined by commas")
	policy := flag.String("policy", `{"round_robin":{}}`, "the policy, as in loadBalancingConfig")
	token := flag.String("token", "", "the token")
	rate := flag.Float64("rate", 60, "calls in a second")
	warmUp := flag.Duration("warm-up", 20*time.Second, "how long calls are not counted")
	counted := flag.Duration("counted", 30*time.Second, "how long calls are counted")
	flag.Parse()

	servers := manual.NewBuilderWithScheme("servers")
	var state resolver.State
	for _, target := range strings.Split(*targets, ",") {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: target}}})
	}
	servers.InitialState(state)
	connection, err := grpc.NewClient("servers:///", grpc.WithResolvers(servers),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[`+*policy+`]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	told := callAtRandom(reasondv1.NewReasoningServiceClient(connection), *token, *rate, *warmUp, *counted)
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}

func callAtRandom(
	client reasondv1.ReasoningServiceClient, token string, rate float64, warmUp, counted time.Duration,
) *result {
	told := &result{TookMs: []float64{}, Calls: map[string]int{}}
	var mutex sync.Mutex
	var running sync.WaitGroup
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+token)
	chance := rand.New(rand.NewPCG(7, 7))
	for began := time.Now(); time.Since(began) < warmUp+counted; {
		time.Sleep(time.Duration(chance.ExpFloat64() / rate * float64(time.Second)))
		isCounted := time.Since(began) >= warmUp
		running.Add(1)
		go func() {
			defer running.Done()
			var server peer.Peer
			task := &reasondv1.ReasoningTask{Query: "What is six times seven?"}
			request := &reasondv1.ReasonRequest{Task: task}
			callBegan := time.Now()
			limited, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := client.Reason(limited, request, grpc.Peer(&server))
			took := time.Since(callBegan)
			mutex.Lock()
			defer mutex.Unlock()
			switch {
			case !isCounted:
			case err != nil:
				told.Failed++
			default:
				told.TookMs = append(told.TookMs, float64(took.Microseconds())/1000)
				told.Calls[server.Addr.String()]++
			}
		}()
	}
	running.Wait()
	return told
}
