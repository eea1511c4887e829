// Command turn runs one turn of a conversation, in which the model calls a tool of this program.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	reasondv1 "reasond/clients/go"
	"reasond/clients/go/reasond"
)

var titles = map[string]string{"A": "Opticks", "B": "Principia"}

func main() {
	client, err := reasond.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	title := reasond.Tool{
		ClientTool: &reasondv1.ClientTool{
			Name:        "book_title",
			Description: "Tells the title of the book on a shelf.",
			ParametersJson: `{"type": "object", "properties": {"shelf": {"type": "string"}},
				"required": ["shelf"], "additionalProperties": false}`,
		},
		Run: func(_ context.Context, call *reasondv1.PendingCall) (any, error) {
			var arguments struct {
				Shelf string `json:"shelf"`
			}
			if err := json.Unmarshal([]byte(call.GetCall().GetArgumentsJson()), &arguments); err != nil {
				return nil, err // the model is told
			}
			return titles[arguments.Shelf], nil
		},
	}
	start := &reasondv1.TurnStart{Message: `What is 15% of 240? Tell the book title of "A".`, SessionId: "go-example"}
	result, err := client.Turn(context.Background(), start, reasond.Toolset{Tools: []reasond.Tool{title}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.GetFinishReason(), result.GetAnswer())
}
