package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var scenarios = map[string]func(*World){
	"send":          send,
	"push":          push,
	"push_tags":     pushTags,
	"two_groups":    twoGroups,
	"broadcast":     broadcast,
	"orderly":       orderly,
	"delay":         delay,
	"retry_dlq":     retryDlq,
	"pull":          pull,
	"request_reply": requestReply,
}

// Played on request only: somebody else is at the other end.
var halves = map[string]func(*World){
	"asker":        asker,
	"answerer":     answerer,
	"failing_over": failingOver,
}

var background = context.Background()

// Seen is what a listener has seen, safe for all its goroutines.
type Seen struct {
	lock   sync.Mutex
	bodies []string
}

// Add notes a body and says how often it has been seen.
func (s *Seen) Add(body string) (times int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.bodies = append(s.bodies, body)
	for _, known := range s.bodies {
		if known == body {
			times++
		}
	}
	return times
}

// Count is how many were seen.
func (s *Seen) Count() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.bodies)
}

// listen starts a consumer that reports and remembers everything, under a name.
func listen(w *World, name, expression string, more ...consumer.Option) (rocketmq.PushConsumer, *Seen) {
	seen := &Seen{}
	made := w.PushConsumer(more...)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	must(made.Subscribe(w.topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				w.Received(message, "member", name)
				seen.Add(string(message.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(made.Start())
	return made, seen
}

func sendOne(w *World, p rocketmq.Producer, message *primitive.Message) *primitive.SendResult {
	result, err := p.SendSync(background, message)
	must(err)
	return result
}

// All ways to send, and every message read back by its place.
func send(w *World) {
	p := w.Producer()
	for i := 0; i < 8; i++ {
		message := w.Message("sync %d", i).WithTag("TagA").WithKeys([]string{fmt.Sprintf("key-%d", i), "all"})
		message.WithProperty("color", "blue")
		w.Sent(sendOne(w, p, message))
	}
	var answered sync.WaitGroup
	for i := 0; i < 20; i++ {
		answered.Add(1)
		must(p.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			defer answered.Done()
			if err != nil {
				w.Emit("refused", "error", err.Error())
				return
			}
			w.Emit("asyncSent", "status", int(result.Status))
		}, w.Message("async %d", i)))
	}
	answered.Wait()
	for i := 0; i < 10; i++ {
		must(p.SendOneWay(background, w.Message("oneway %d", i)))
	}
	batch := []*primitive.Message{}
	for i := 0; i < 5; i++ {
		batch = append(batch, w.Message("batch %d", i))
	}
	result, err := p.SendSync(background, batch...)
	must(err)
	w.Emit("batch", "status", int(result.Status), "queueId", result.MessageQueue.QueueId, "queueOffset", result.QueueOffset)
	c, seen := listen(w, "reader", "*")
	w.Await("all 43 messages arrive", func() bool { return seen.Count() >= 43 })
	time.Sleep(200 * time.Millisecond)
	must(c.Shutdown())
	noise := make([]byte, 5<<20) // what cannot be compressed
	rand.New(rand.NewSource(1)).Read(noise)
	_, err = p.SendSync(background, primitive.NewMessage(w.topic, noise))
	w.Emit("tooBig", "refused", err != nil)
}

// Everything once; a held pull is answered by the next message; a successor goes on where the group was.
func push(w *World) {
	p := w.Producer()
	for i := 0; i < 40; i++ {
		sendOne(w, p, w.Message("push %d", i))
	}
	first, seen := listen(w, "first", "*")
	w.Await("all 40 arrive", func() bool { return seen.Count() == 40 })
	for i := 0; i < 3; i++ {
		sendOne(w, p, w.Message("held %d", i))
		began := time.Now()
		w.Await("the held pull is answered", func() bool { return seen.Count() == 41+i })
		w.Emit("held", "ms", time.Since(began).Milliseconds())
	}
	time.Sleep(300 * time.Millisecond)
	must(first.Shutdown())
	for i := 0; i < 6; i++ {
		sendOne(w, p, w.Message("later %d", i))
	}
	second, resumed := listen(w, "second", "*")
	w.Await("the 6 sent meanwhile arrive", func() bool { return resumed.Count() >= 6 })
	time.Sleep(300 * time.Millisecond)
	must(second.Shutdown())
}

func pushTags(w *World) {
	p := w.Producer()
	for i := 0; i < 12; i++ {
		tag := string("ABC"[i%3])
		sendOne(w, p, w.Message("%s%d", tag, i).WithTag(tag))
	}
	c, seen := listen(w, "only", "A || C")
	w.Await("the 8 with tag A or C arrive", func() bool { return seen.Count() >= 8 })
	time.Sleep(300 * time.Millisecond)
	must(c.Shutdown())
}

// Two groups of one topic, each with two members: each group gets everything, each message one member of it.
func twoGroups(w *World) {
	p := w.Producer()
	for i := 0; i < 8; i++ {
		sendOne(w, p, w.Message("both %d", i))
	}
	total := &Seen{}
	for _, group := range []string{"one", "two"} {
		for member := 0; member < 2; member++ {
			name := group
			c := w.PushConsumer(consumer.WithGroupName(w.group + "-" + group))
			must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
				func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
					for _, message := range messages {
						w.Received(message, "group", name)
						total.Add(name + string(message.Body))
					}
					return consumer.ConsumeSuccess, nil
				}))
			must(c.Start())
			defer c.Shutdown()
		}
	}
	w.Await("each group has everything", func() bool { return total.Count() >= 16 })
	for i := 8; i < 48; i++ {
		sendOne(w, p, w.Message("both %d", i))
	}
	w.Await("each group has everything", func() bool { return total.Count() >= 96 })
	time.Sleep(300 * time.Millisecond)
}

func broadcast(w *World) {
	p := w.Producer()
	sendOne(w, p, w.Message("before"))
	last := consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)
	ann, one := listen(w, "ann", "*", consumer.WithConsumerModel(consumer.BroadCasting), last)
	bob, two := listen(w, "bob", "*", consumer.WithConsumerModel(consumer.BroadCasting), last)
	time.Sleep(2 * time.Second)
	for i := 0; i < 20; i++ {
		sendOne(w, p, w.Message("all %d", i))
	}
	w.Await("both have everything", func() bool { return one.Count() >= 20 && two.Count() >= 20 })
	time.Sleep(300 * time.Millisecond)
	must(ann.Shutdown())
	must(bob.Shutdown())
}

// Messages of one sharding key come in order, also when one of them is put off.
func orderly(w *World) {
	p := w.Producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for step := 0; step < 8; step++ {
		for order := 0; order < 5; order++ {
			message := w.Message("order %d step %d", order, step).WithShardingKey(fmt.Sprintf("order-%d", order))
			sendOne(w, p, message)
		}
	}
	seen := &Seen{}
	good := &Seen{}
	c := w.PushConsumer(consumer.WithConsumerOrder(true),
		consumer.WithSuspendCurrentQueueTimeMillis(200*time.Millisecond))
	must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				body := string(message.Body)
				times := seen.Add(body)
				w.Received(message, "try", times)
				if body == "order 2 step 3" && times == 1 {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				good.Add(body)
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(c.Start())
	w.Await("all 40 are consumed", func() bool { return good.Count() >= 40 })
	time.Sleep(200 * time.Millisecond)
	must(c.Shutdown())
}

func delay(w *World) {
	p := w.Producer()
	sendOne(w, p, w.Message("plain"))
	seen := &Seen{}
	c := w.PushConsumer()
	must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				w.Received(message, "clockMs", time.Now().UnixMilli())
				seen.Add(string(message.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(c.Start())
	w.Await("the plain message arrives", func() bool { return seen.Count() == 1 })
	for level := 1; level <= 2; level++ {
		before := time.Now().UnixMilli()
		w.Sent(sendOne(w, p, w.Message("level %d", level).WithDelayTimeLevel(level)))
		w.Emit("asked", "level", level, "beforeMs", before, "afterMs", time.Now().UnixMilli())
	}
	w.Await("both delayed messages arrive", func() bool { return seen.Count() >= 3 })
	must(c.Shutdown())
}

// A listener that never succeeds: once more from the retry topic, and then a dead letter.
func retryDlq(w *World) {
	p := w.Producer()
	sendOne(w, p, w.Message("the topic begins"))
	// The broker creates the group's retry topic at the first heartbeat; who starts before that finds it much later.
	first, _ := listen(w, "first", "none")
	time.Sleep(time.Second)
	must(first.Shutdown())
	seen := &Seen{}
	c := w.PushConsumer(consumer.WithMaxReconsumeTimes(1))
	must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "TagA"},
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				w.Received(message, "from", "listener")
				seen.Add(string(message.Body))
			}
			retry, _ := primitive.GetConcurrentlyCtx(ctx)
			retry.DelayLevelWhenNextConsume = 1
			return consumer.ConsumeRetryLater, nil
		}))
	must(c.Start())
	sendOne(w, p, w.Message("hopeless").WithTag("TagA").WithKeys([]string{"key-1"}))
	w.Await("it is tried twice", func() bool { return seen.Count() >= 2 })
	time.Sleep(500 * time.Millisecond)
	must(c.Shutdown())
	dead, err := rocketmq.NewPullConsumer(w.consumerOptions([]consumer.Option{
		consumer.WithGroupName(w.group + "-undertaker")})...)
	must(err)
	must(dead.Subscribe("%DLQ%"+w.group, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(dead.Start())
	w.Await("the dead letter is read", func() bool {
		return poll(dead, func(message *primitive.MessageExt) { w.Received(message, "from", "dlq") }) > 0
	})
	must(dead.Shutdown())
}

// poll reads once, reports what came, and acknowledges it.
func poll(c rocketmq.PullConsumer, report func(*primitive.MessageExt)) int {
	request, err := c.Poll(background, time.Second)
	if errors.Is(err, consumer.ErrNoNewMsg) {
		return 0
	}
	must(err)
	for _, message := range request.GetMsgList() {
		report(message)
	}
	c.ACK(background, request, consumer.ConsumeSuccess)
	return len(request.GetMsgList())
}

// The pull consumer: polled as a member of a group, and sent to a place of a queue.
func pull(w *World) {
	p := w.Producer()
	broker := ""
	for i := 0; i < 12; i++ {
		broker = sendOne(w, p, w.Message("pull %d", i)).MessageQueue.BrokerName
	}
	c, err := rocketmq.NewPullConsumer(w.consumerOptions(nil)...)
	must(err)
	must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(c.Start())
	count := 0
	w.Await("all 12 are polled", func() bool {
		count += poll(c, func(message *primitive.MessageExt) { w.Received(message, "how", "poll") })
		return count >= 12
	})
	queue := &primitive.MessageQueue{Topic: w.topic, BrokerName: broker, QueueId: 0}
	result, err := c.PullFrom(background, queue, 1, 2)
	must(err)
	for _, message := range result.GetMessageExts() {
		w.Received(message, "how", "place")
	}
	w.Emit("pulled", "next", result.NextBeginOffset, "min", result.MinOffset, "max", result.MaxOffset)
	must(c.PersistOffset(background, w.topic))
	time.Sleep(300 * time.Millisecond)
	must(c.Shutdown())
}

// answering starts a consumer that answers everything but silence.
func answering(w *World, answered *Seen) rocketmq.PushConsumer {
	replier := w.Producer()
	c := w.PushConsumer()
	must(c.Subscribe(w.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				body := string(message.Body)
				if strings.HasPrefix(body, "silence") {
					continue
				}
				reply, err := consumer.CreateReplyMessage(message, nil)
				if err != nil {
					w.Emit("replyFailed", "error", err.Error())
					continue
				}
				// Version 2.1.2 takes the body that it is given for properties, and leaves the answer without one.
				reply.Body = []byte("re: " + body)
				if _, err = replier.SendSync(background, reply); err != nil {
					w.Emit("replyFailed", "error", err.Error())
				}
				answered.Add(body)
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(c.Start())
	return c
}

// asking asks three questions and reports the answers.
func asking(w *World, p rocketmq.Producer) {
	for i := 0; i < 3; i++ {
		answer, err := p.Request(background, 15*time.Second, w.Message("question %d", i))
		must(err)
		w.Emit("answered", "body", string(answer.Body))
	}
}

func requestReply(w *World) {
	p := w.Producer()
	sendOne(w, p, w.Message("silence, the topic begins"))
	c := answering(w, &Seen{})
	// A broker knows a producer by its heartbeat: before that nobody can be answered.
	time.Sleep(2 * time.Second)
	asking(w, p)
	_, err := p.Request(background, time.Second, w.Message("silence"))
	w.Emit("unanswered", "error", fmt.Sprint(err))
	must(c.Shutdown())
}

// The asking half: a client in another language answers.
func asker(w *World) {
	p := w.Producer()
	sendOne(w, p, w.Message("silence, the topic begins"))
	time.Sleep(2 * time.Second)
	asking(w, p)
}

// The answering half: a client in another language asks, three times.
func answerer(w *World) {
	sendOne(w, w.Producer(), w.Message("silence, the topic begins"))
	answered := &Seen{}
	c := answering(w, answered)
	w.Await("three questions are answered", func() bool { return answered.Count() >= 3 })
	time.Sleep(300 * time.Millisecond)
	must(c.Shutdown())
}
