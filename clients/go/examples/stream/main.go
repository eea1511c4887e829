// Command stream asks a question and prints every step. It goes on where it was if the connection breaks.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	reasondv1 "reasond/clients/go"
	"reasond/clients/go/reasond"
)

func main() {
	client, err := reasond.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	stream := client.ReasonIterations(context.Background(), &reasondv1.ReasonIterationsRequest{
		Source:      &reasondv1.ReasonIterationsRequest_Task{Task: &reasondv1.ReasoningTask{Query: "What is 15% of 240?"}},
		KeepRunning: true,
	})
	for event, err := range stream {
		var failure *reasond.Error
		if errors.As(err, &failure) {
			log.Fatalf("%s: %s (retry after %v)", failure.Reason, failure.Message, failure.RetryAfter)
		}
		switch happening := event.GetEvent().(type) {
		case *reasondv1.ReasonIterationsResponse_Iteration:
			fmt.Println(event.GetSequence(), "step", happening.Iteration.GetIndex())
		case *reasondv1.ReasonIterationsResponse_Completed:
			fmt.Println(happening.Completed.GetFinishReason(), happening.Completed.GetAnswer())
		}
	}
}
