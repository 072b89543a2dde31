// Command compat plays scenarios with RocketMQ's official Go client (v2) against a name server, and reports what it saw:
// one JSON object a line on standard output, as the Java driver beside it does.
//
//	compat NAMESRV PREFIX [SCENARIO ...]
//
// The topic of a scenario is the prefix, a hyphen and its name; its group is that and "-group". All scenarios run at
// the same time, in a client instance of their own.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 25 * time.Second

var output sync.Mutex

// World is the surroundings of one scenario: where the name server is, and names nobody else uses.
type World struct {
	namesrv, scenario, topic, group string
	instances                       int
	closers                         []func() error
}

// Emit reports an event of the scenario; pairs are alternating names and values.
func (w *World) Emit(event string, pairs ...any) {
	fields := map[string]any{"scenario": w.scenario, "event": event}
	for i := 0; i+1 < len(pairs); i += 2 {
		fields[pairs[i].(string)] = pairs[i+1]
	}
	line, err := json.Marshal(fields)
	must(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

// Received reports a message as its consumer got it.
func (w *World) Received(message *primitive.MessageExt, pairs ...any) {
	queue := -1
	if message.Queue != nil {
		queue = message.Queue.QueueId
	}
	described := map[string]any{
		"topic":          message.Topic,
		"body":           string(message.Body),
		"tags":           message.GetTags(),
		"keys":           message.GetKeys(),
		"msgId":          message.MsgId,
		"offsetMsgId":    message.OffsetMsgId,
		"queueId":        queue,
		"queueOffset":    message.QueueOffset,
		"reconsumeTimes": message.ReconsumeTimes,
		"properties":     message.GetProperties(),
	}
	w.Emit("received", append([]any{"message", described}, pairs...)...)
}

// Sent reports the result of a send.
func (w *World) Sent(result *primitive.SendResult) {
	w.Emit("sent", "result", map[string]any{
		"status":      int(result.Status),
		"msgId":       result.MsgID,
		"offsetMsgId": result.OffsetMsgID,
		"queueId":     result.MessageQueue.QueueId,
		"broker":      result.MessageQueue.BrokerName,
		"queueOffset": result.QueueOffset,
	})
}

func (w *World) instance() string {
	w.instances++
	return fmt.Sprintf("%s-%d", w.topic, w.instances)
}

func (w *World) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{w.namesrv})
}

// Producer is a started producer.
func (w *World) Producer(more ...producer.Option) rocketmq.Producer {
	options := append([]producer.Option{
		producer.WithGroupName(w.group + "-producer"),
		producer.WithNsResolver(w.resolver()),
		producer.WithInstanceName(w.instance()),
		// A repeated send would hide a refused one.
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(10 * time.Second),
	}, more...)
	made, err := rocketmq.NewProducer(options...)
	must(err)
	must(made.Start())
	w.closers = append(w.closers, made.Shutdown)
	return made
}

// PushConsumer is a consumer that is not started yet.
func (w *World) PushConsumer(more ...consumer.Option) rocketmq.PushConsumer {
	made, err := rocketmq.NewPushConsumer(w.consumerOptions(more)...)
	must(err)
	return made
}

func (w *World) consumerOptions(more []consumer.Option) []consumer.Option {
	return append([]consumer.Option{
		consumer.WithGroupName(w.group),
		consumer.WithNsResolver(w.resolver()),
		consumer.WithInstance(w.instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
}

// Message is a message for the scenario's topic.
func (w *World) Message(format string, arguments ...any) *primitive.Message {
	return primitive.NewMessage(w.topic, []byte(fmt.Sprintf(format, arguments...)))
}

// Await waits until a condition is true.
func (w *World) Await(what string, condition func() bool) {
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("not within %s: %s", patience, what))
		}
	}
}

// Close shuts down what the scenario opened, the newest first.
func (w *World) Close() {
	for i := len(w.closers) - 1; i >= 0; i-- {
		must(w.closers[i]())
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func play(namesrv, prefix, scenario string, run func(*World)) {
	topic := prefix + "-" + scenario
	world := &World{namesrv: namesrv, scenario: scenario, topic: topic, group: topic + "-group"}
	defer func() {
		if trouble := recover(); trouble != nil {
			world.Emit("failed", "error", fmt.Sprint(trouble))
		}
	}()
	run(world)
	world.Close()
	world.Emit("done")
}

func main() {
	rlog.SetLogLevel("error")
	namesrv, prefix, names := os.Args[1], os.Args[2], os.Args[3:]
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
	}
	for name, run := range halves {
		scenarios[name] = run
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Add(1)
		go func() {
			defer all.Done()
			play(namesrv, prefix, name, scenarios[name])
		}()
	}
	all.Wait()
}
