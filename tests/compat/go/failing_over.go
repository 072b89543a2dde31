package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// failingOver works while leaders come and go: plain messages, orderly ones, delayed ones. Message by message, each to
// the queue that its number tells, the same number again until it is acknowledged; every attempt is told: "sent", or
// "failed" with whether the outcome is unknown. "stop" on standard input ends the sending and is answered by
// "stopped"; "end" ends.
func failingOver(w *World) {
	stopping := &atomic.Bool{}
	var senders sync.WaitGroup
	clients := []any{}
	for _, kind := range []string{"plain", "orderly", "delayed"} {
		made := w.PushConsumer(consumer.WithGroupName(w.group+"-"+kind), consumer.WithConsumerOrder(kind == "orderly"))
		must(made.Subscribe(w.topic+"-"+kind, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
			func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
				for _, message := range messages {
					number, err := strconv.Atoi(string(message.Body))
					must(err)
					w.Emit("received", "kind", kind, "number", number, "queueId", message.Queue.QueueId,
						"queueOffset", message.QueueOffset, "wallMs", time.Now().UnixMilli())
				}
				return consumer.ConsumeSuccess, nil
			}))
		must(made.Start())
		w.closers = append(w.closers, made.Shutdown)
		clients = append(clients, made)
		p := w.Producer(producer.WithQueueSelector(producer.NewManualQueueSelector()),
			producer.WithGroupName(w.group+"-"+kind+"-producer"))
		clients = append(clients, p)
		senders.Add(1)
		go func() {
			defer senders.Done()
			for number := 0; !stopping.Load(); number++ {
				for !attempt(w, p, kind, number) {
					time.Sleep(50 * time.Millisecond)
				}
				time.Sleep(map[bool]time.Duration{true: 100, false: 20}[kind == "delayed"] * time.Millisecond)
			}
		}()
	}
	go pollNameServers(clients)
	w.Emit("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan() && lines.Text() != "end"; {
		stopping.Store(true)
		senders.Wait()
		w.Emit("stopped")
	}
}

func attempt(w *World, p interface {
	SendSync(context.Context, ...*primitive.Message) (*primitive.SendResult, error)
}, kind string, number int) bool {
	message := primitive.NewMessage(w.topic+"-"+kind, []byte(fmt.Sprint(number)))
	message.Queue = &primitive.MessageQueue{Topic: message.Topic, BrokerName: "broker-a", QueueId: number % 4}
	if kind == "delayed" {
		message.WithDelayTimeLevel(1 + number%2)
	}
	before := time.Now().UnixMilli()
	result, err := p.SendSync(background, message)
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %d", result.Status)
	}
	if err == nil {
		w.Emit("sent", "kind", kind, "number", number, "beforeMs", before)
		return true
	}
	var refused primitive.MQBrokerErr
	var refusedToo *primitive.MQBrokerErr
	code := int16(0)
	if errors.As(err, &refused) {
		code = refused.ResponseCode
	} else if errors.As(err, &refusedToo) {
		code = refusedToo.ResponseCode
	}
	text := err.Error()
	unsent := code == 14 || code == 2 || strings.Contains(text, "route info not found") ||
		strings.Contains(text, "connection refused")
	w.Emit("failed", "kind", kind, "number", number, "beforeMs", before, "unknown", !unsent, "error", text)
	return false
}

// pollNameServers has clients ask for their routes every second. This client has no setting for that: its own interval
// is half a minute, as is the Java client's where nobody sets it.
func pollNameServers(clients []any) {
	for ; ; time.Sleep(time.Second) {
		for _, client := range clients {
			field := reflect.ValueOf(client).Elem().FieldByName("client")
			inner := reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface()
			inner.(interface{ UpdateTopicRouteInfo() }).UpdateTopicRouteInfo()
		}
	}
}
