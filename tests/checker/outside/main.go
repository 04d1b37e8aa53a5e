package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type input struct {
	F        string
	From, To *json.Number
}

type output struct {
	Known, Ok bool
	Value     *json.Number
}

type operation struct {
	ClientId     int
	Input        input
	Call, Return int64
	Output       output
}

func text(number *json.Number) string {
	if number == nil {
		return ""
	}
	return number.String()
}

var register = porcupine.Model{
	Init: func() interface{} { return "" },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		asked, told := in.(input), out.(output)
		holds := state == text(asked.From)
		switch {
		case asked.F == "read":
			return state == text(told.Value), state
		case !told.Known && !holds:
			return true, state // it may have had no effect
		case told.Ok:
			return holds, text(asked.To)
		default:
			return !holds, state
		}
	},
}

func main() {
	for _, name := range os.Args[1:] {
		file, err := os.Open(name)
		if err != nil {
			panic(err)
		}
		var history []porcupine.Operation
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			var one operation
			if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
				panic(err)
			}
			history = append(history, porcupine.Operation{
				ClientId: one.ClientId, Input: one.Input, Call: one.Call, Output: one.Output, Return: one.Return,
			})
		}
		fmt.Println(name, porcupine.CheckOperationsTimeout(register, history, time.Minute))
	}
}
