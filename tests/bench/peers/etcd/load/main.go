// Command load asks an etcd server: so many requests, so many of them under way, and prints a line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	endpoint := flag.String("endpoint", "", "host:port of a member")
	kind := flag.String("kind", "put", "put, get or local (a serializable get)")
	count := flag.Int64("count", 10000, "requests")
	inFlight := flag.Int("in-flight", 64, "requests under way")
	batch := flag.Int("batch", 1, "puts in each request")
	size := flag.Int("size", 128, "bytes of a value")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, DialTimeout: 5 * time.Second})
	exitOn(err)
	defer client.Close()
	value := strings.Repeat("x", *size)
	var asked atomic.Int64
	took := make([][]float64, *inFlight)
	var done sync.WaitGroup
	began := time.Now()
	for worker := 0; worker < *inFlight; worker++ {
		done.Add(1)
		go func(worker int) {
			defer done.Done()
			for {
				number := asked.Add(1)
				if number > *count {
					return
				}
				since := time.Now()
				exitOn(ask(client, *kind, number, *batch, value))
				took[worker] = append(took[worker], time.Since(since).Seconds()*1000)
			}
		}(worker)
	}
	done.Wait()
	seconds := time.Since(began).Seconds()
	var all []float64
	for _, each := range took {
		all = append(all, each...)
	}
	sort.Float64s(all)
	line, _ := json.Marshal(map[string]any{
		"rate": float64(*count) * float64(*batch) / seconds, "p50Ms": all[len(all)/2], "p99Ms": all[len(all)*99/100],
	})
	fmt.Println(string(line))
}

func ask(client *clientv3.Client, kind string, number int64, batch int, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch {
	case kind == "get":
		_, err := client.Get(ctx, key(number))
		return err
	case kind == "local":
		_, err := client.Get(ctx, key(number), clientv3.WithSerializable())
		return err
	case batch == 1:
		_, err := client.Put(ctx, key(number), value)
		return err
	}
	var puts []clientv3.Op
	for place := 0; place < batch; place++ {
		puts = append(puts, clientv3.OpPut(key(number*int64(batch)+int64(place)), value))
	}
	_, err := client.Txn(ctx).Then(puts...).Commit()
	return err
}

func key(number int64) string {
	return fmt.Sprintf("key-%06d", number%10000)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
