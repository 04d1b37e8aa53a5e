// go-zookeeper. Usage: see support.py.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"strings"

	"github.com/samuel/go-zookeeper/zk"
)

var over int32

type quiet struct{}

func (quiet) Printf(string, ...interface{}) {}

func say(words ...interface{}) { fmt.Println(words...) }

func isOver() bool { return atomic.LoadInt32(&over) != 0 }

func connect(hosts string, timeout time.Duration, isToldOf bool) *zk.Conn {
	client, events, err := zk.Connect(strings.Split(hosts, ","), timeout, zk.WithLogInfo(false))
	if err != nil {
		say("FAILED", err)
		os.Exit(1)
	}
	client.SetLogger(quiet{})
	connected := make(chan struct{}, 1)
	go func() {
		for event := range events {
			switch event.State {
			case zk.StateHasSession:
				select {
				case connected <- struct{}{}:
				default:
				}
			case zk.StateExpired:
				say("lost")
			case zk.StateDisconnected:
				if isToldOf {
					say("suspended")
				}
			}
		}
	}()
	<-connected
	return client
}

func contend(client *zk.Conn, path, file string) int {
	acl := zk.WorldACL(zk.PermAll)
	for !isOver() {
		lock := zk.NewLock(client, path, acl)
		err := lock.Lock()
		if err == nil {
			inside, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0600)
			if err != nil {
				say("overlap")
				return 1
			}
			inside.Close()
			time.Sleep(5 * time.Millisecond)
			os.Remove(file)
			say("tenure")
			for err := lock.Unlock(); err != nil && !errors.Is(err, zk.ErrNoNode) && !isOver(); err = lock.Unlock() {
				say("failed", err)
				time.Sleep(100 * time.Millisecond)
			}
		} else {
			say("failed", err)
			time.Sleep(100 * time.Millisecond)
			// It does not look for a node whose create's answer was lost, or whose wait was interrupted.
			clean(client, path)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0
}

// Removes this session's nodes below the path.
func clean(client *zk.Conn, path string) {
	for !isOver() {
		names, _, err := client.Children(path)
		for _, name := range names {
			_, stat, failed := client.Exists(path + "/" + name)
			if failed == nil && stat != nil && stat.EphemeralOwner == client.SessionID() {
				failed = client.Delete(path+"/"+name, -1)
			}
			if failed != nil && !errors.Is(failed, zk.ErrNoNode) {
				err = failed
			}
		}
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func ensure(holds bool, what ...interface{}) {
	if !holds {
		say(append([]interface{}{"FAILED"}, what...)...)
		os.Exit(1)
	}
}

func recipes(one, two *zk.Conn, path string) int {
	acl := zk.WorldACL(zk.PermAll)
	ann, bob := zk.NewLock(one, path+"/lock", acl), zk.NewLock(two, path+"/lock", acl)
	ensure(ann.Lock() == nil, "a free lock")
	had := make(chan error, 1)
	go func() { had <- bob.Lock() }()
	for {
		names, _, err := one.Children(path + "/lock")
		ensure(err == nil, err)
		if len(names) == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	ensure(len(had) == 0 && ann.Unlock() == nil, "one alone")
	ensure(<-had == nil && bob.Unlock() == nil, "then the other")
	say("ok lock")

	_, _, events, err := one.ExistsW(path + "/node")
	ensure(err == nil, err)
	_, err = two.Create(path+"/node", []byte("x"), zk.FlagEphemeral, acl)
	ensure(err == nil, err)
	ensure((<-events).Type == zk.EventNodeCreated, "created")
	_, _, events, err = one.GetW(path + "/node")
	ensure(err == nil, err)
	_, err = two.Set(path+"/node", []byte("y"), 0)
	ensure(err == nil, err)
	ensure((<-events).Type == zk.EventNodeDataChanged, "changed")
	_, _, events, err = one.ChildrenW(path)
	ensure(err == nil, err)
	two.Close()
	ensure((<-events).Type == zk.EventNodeChildrenChanged, "gone with its session")
	say("ok watches")

	results, err := one.Multi(
		&zk.CreateRequest{Path: path + "/m", Acl: acl},
		&zk.SetDataRequest{Path: path + "/m", Data: []byte("1"), Version: 0},
		&zk.DeleteRequest{Path: path + "/m", Version: 1})
	ensure(err == nil && len(results) == 3, err)
	_, err = one.Multi(&zk.CreateRequest{Path: path + "/m", Acl: acl}, &zk.CheckVersionRequest{Path: path, Version: 9})
	exists, _, _ := one.Exists(path + "/m")
	ensure(err != nil && !exists, "all or nothing")
	say("ok multi")

	ensure(one.AddAuth("digest", []byte("ann:secret")) == nil, "an identity")
	_, err = one.Create(path+"/secret", nil, 0, zk.DigestACL(zk.PermAll, "ann", "secret"))
	ensure(err == nil, err)
	_, _, err = one.GetACL(path + "/secret")
	ensure(err == nil && one.Delete(path+"/secret", -1) == nil, err)
	say("ok acl")
	return 0
}

func main() {
	mode, hosts, path := os.Args[2], os.Args[3], os.Args[4]
	if mode == "recipes" {
		os.Exit(recipes(connect(hosts, 20*time.Second, false), connect(hosts, 20*time.Second, false), path))
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		atomic.StoreInt32(&over, 1)
	}()
	if mode == "contend" {
		os.Exit(contend(connect(hosts, 20*time.Second, false), path, os.Args[5]))
	}
	client := connect(hosts, 4*time.Second, true)
	if err := zk.NewLock(client, path, zk.WorldACL(zk.PermAll)).Lock(); err != nil {
		say("FAILED", err)
		os.Exit(1)
	}
	say("held", fmt.Sprintf("0x%x", client.SessionID()))
	for !isOver() {
		time.Sleep(20 * time.Millisecond)
	}
}
