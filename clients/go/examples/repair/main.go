// Command repair has a faulty function mended and prints the patch. It needs a server with [repair] and an environment
// "python".
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	reasondv1 "reasond/clients/go"
	"reasond/clients/go/reasond"
)

func main() {
	client, err := reasond.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	files := &reasondv1.SourceFiles{Files: []*reasondv1.SourceFile{
		{Path: "calc.py", Content: []byte("def add(a, b):\n    return a - b\n")},
		{Path: "test_calc.py", Content: []byte("from calc import add\n\nassert add(2, 3) == 5\n")},
	}}
	stream := client.RepairSteps(ctx, &reasondv1.RepairStepsRequest{
		Source: &reasondv1.RepairStepsRequest_Task{Task: &reasondv1.RepairTask{
			Description: "The sum is wrong.",
			Goal:        &reasondv1.RepairTask_Fix{Fix: &reasondv1.Fix{}},
			Code:        &reasondv1.RepairTask_Files{Files: files},
			Environment: "python",
			Checks: []*reasondv1.Check{{
				Name: "sum", Argv: []string{"python3", "test_calc.py"}, Format: reasondv1.ResultFormat_RESULT_FORMAT_EXIT_CODE,
			}},
		}},
		KeepRunning: true,
	})
	for event, err := range stream {
		if err != nil {
			log.Fatal(err)
		}
		if repair := event.GetCompleted(); repair != nil {
			fmt.Println(repair.GetIsAccepted(), repair.GetFinishReason())
			fmt.Print(repair.GetPatch())
		}
	}
}
