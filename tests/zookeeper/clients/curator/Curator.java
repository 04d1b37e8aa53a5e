import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooKeeper;

/** Curator's recipes, and the Java client below them. Usage: see support.py. */
public final class Curator {
    private static final int PATIENCE_S = 60;
    private static String connect;
    private static String root;

    private Curator() {}

    static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        System.out.println(line);
        System.out.flush();
    }

    static void ensure(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.call()) {
            ensure(System.nanoTime() < end, "never: " + what);
            Thread.sleep(10);
        }
    }

    static CuratorFramework client(int sessionMs) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(connect)
                .sessionTimeoutMs(sessionMs)
                .connectionTimeoutMs(5_000)
                .retryPolicy(new ExponentialBackoffRetry(50, 10, 1_000))
                .build();
        client.start();
        ensure(client.blockUntilConnected(PATIENCE_S, TimeUnit.SECONDS), "it connects");
        return client;
    }

    static CountDownLatch inputEnds() {
        CountDownLatch over = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException ended) {
                // The same as its end.
            }
            over.countDown();
        });
        reader.setDaemon(true);
        reader.start();
        return over;
    }

    /** Fails if another one is inside. */
    static void enter(String file) throws Exception {
        Files.createFile(Path.of(file));
        Thread.sleep(5);
        Files.delete(Path.of(file));
    }

    static int contend(String file) throws Exception {
        CountDownLatch over = inputEnds();
        CuratorFramework client = client(20_000);
        client.getConnectionStateListenable().addListener((of, state) -> {
            if (state == ConnectionState.LOST) {
                say("lost");
            }
        });
        InterProcessMutex mutex = new InterProcessMutex(client, root);
        while (over.getCount() > 0) {
            try {
                if (!mutex.isAcquiredInThisProcess()) {
                    mutex.acquire();
                }
                enter(file);
                say("tenure");
                mutex.release();
            } catch (java.nio.file.FileAlreadyExistsException overlap) {
                say("overlap");
                return 1;
            } catch (Exception error) {
                say("failed", error);
                Thread.sleep(200);
            }
            Thread.sleep(5);
        }
        client.close();
        return 0;
    }

    static int hold() throws Exception {
        CountDownLatch over = inputEnds();
        CuratorFramework client = client(4_000);
        client.getConnectionStateListenable().addListener((of, state) -> say(state.toString().toLowerCase()));
        new InterProcessMutex(client, root).acquire();
        say("held", "0x" + Long.toHexString(client.getZookeeperClient().getZooKeeper().getSessionId()));
        over.await();
        return 0;
    }

    /** A latch: says `in` when it leads, `out` when it does not. */
    static int latch() throws Exception {
        CountDownLatch over = inputEnds();
        CuratorFramework client = client(4_000);
        client.getConnectionStateListenable().addListener((of, state) -> say(state.toString().toLowerCase()));
        LeaderLatch latch = new LeaderLatch(client, root, "pid" + ProcessHandle.current().pid());
        latch.addListener(new LeaderLatchListener() {
            @Override
            public void isLeader() {
                say("in");
            }

            @Override
            public void notLeader() {
                say("out");
            }
        });
        latch.start();
        say("takes part");
        over.await();
        return 0;
    }

    /** A mutex whose holder gives it back when it hears of a lost connection or session, as Curator's users are told to, and queues again. */
    static int retake() throws Exception {
        CountDownLatch over = inputEnds();
        CuratorFramework client = client(4_000);
        java.util.concurrent.Semaphore told = new java.util.concurrent.Semaphore(0);
        client.getConnectionStateListenable().addListener((of, state) -> {
            say(state.toString().toLowerCase());
            if (!state.isConnected()) {
                told.release();
            }
        });
        InterProcessMutex mutex = new InterProcessMutex(client, root);
        say("takes part");
        while (over.getCount() > 0) {
            try {
                told.drainPermits();
                mutex.acquire();
                say("in");
                told.acquire();
            } catch (Exception error) {
                say("failed", error);
            }
            say("out");
            try {
                mutex.release();
            } catch (Exception error) {
                say("failed", error);
            }
            Thread.sleep(10);
        }
        return 0;
    }

    interface Recipe {
        void run(CuratorFramework one, CuratorFramework two, String path) throws Exception;
    }

    private static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });

    static <T> T finish(Future<T> work) throws Exception {
        return work.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    static void mutex(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        InterProcessMutex ann = new InterProcessMutex(one, path);
        InterProcessMutex bob = new InterProcessMutex(two, path);
        ann.acquire();
        ensure(ann.acquire(1, TimeUnit.SECONDS), "it is reentrant");
        ann.release();
        ensure(!bob.acquire(300, TimeUnit.MILLISECONDS), "it is held");
        eventually("what gave up leaves nothing", () -> one.getChildren().forPath(path).size() == 1);
        try {
            bob.release();
            ensure(false, "it is not bob's");
        } catch (IllegalMonitorStateException refused) {
            // As it should be.
        }
        Future<Boolean> waited = THREADS.submit(() -> {
            boolean held = bob.acquire(PATIENCE_S, TimeUnit.SECONDS);
            bob.release();
            return held;
        });
        eventually("it queues", () -> ann.getParticipantNodes().size() == 2);
        ann.release();
        ensure(finish(waited), "the waiter has it");

        // A waiter that is interrupted leaves the queue.
        ann.acquire();
        Thread interrupted = new Thread(() -> {
            try {
                bob.acquire();
            } catch (Exception expected) {
                // InterruptedException.
            }
        });
        interrupted.start();
        eventually("it queues", () -> ann.getParticipantNodes().size() == 2);
        interrupted.interrupt();
        eventually("it has left", () -> ann.getParticipantNodes().size() == 1);
        interrupted.join();
        ann.release();
    }

    static void contention(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        List<Integer> inside = new CopyOnWriteArrayList<>();
        List<Future<Integer>> works = new ArrayList<>();
        for (int n = 0; n < 5; n++) {
            InterProcessMutex mutex = new InterProcessMutex(n % 2 == 0 ? one : two, path);
            int number = n;
            works.add(THREADS.submit(() -> {
                for (int turn = 0; turn < 5; turn++) {
                    mutex.acquire();
                    inside.add(number);
                    Thread.sleep(2);
                    ensure(inside.size() == 1, "one alone");
                    inside.remove(0);
                    mutex.release();
                }
                return 0;
            }));
        }
        for (Future<Integer> work : works) {
            finish(work);
        }
    }

    static void semaphores(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        InterProcessSemaphoreMutex ann = new InterProcessSemaphoreMutex(one, path + "/mutex");
        InterProcessSemaphoreMutex bob = new InterProcessSemaphoreMutex(two, path + "/mutex");
        ann.acquire();
        ensure(!bob.acquire(300, TimeUnit.MILLISECONDS), "it is held");
        ann.release();
        ensure(bob.acquire(PATIENCE_S, TimeUnit.SECONDS), "it is free");
        bob.release();
        InterProcessSemaphoreV2 here = new InterProcessSemaphoreV2(one, path + "/places", 2);
        InterProcessSemaphoreV2 there = new InterProcessSemaphoreV2(two, path + "/places", 2);
        Lease first = here.acquire();
        Lease second = there.acquire();
        ensure(here.acquire(300, TimeUnit.MILLISECONDS) == null, "two places");
        there.returnLease(second);
        Collection<Lease> third = here.acquire(1, PATIENCE_S, TimeUnit.SECONDS);
        ensure(third != null, "a place is free");
        here.returnAll(third);
        here.returnLease(first);
    }

    static void readWriteLock(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        InterProcessReadWriteLock here = new InterProcessReadWriteLock(one, path);
        InterProcessReadWriteLock there = new InterProcessReadWriteLock(two, path);
        here.readLock().acquire();
        ensure(there.readLock().acquire(PATIENCE_S, TimeUnit.SECONDS), "readers share");
        there.readLock().release();
        ensure(!there.writeLock().acquire(300, TimeUnit.MILLISECONDS), "a writer does not");
        here.readLock().release();
        ensure(there.writeLock().acquire(PATIENCE_S, TimeUnit.SECONDS), "alone");
        ensure(there.readLock().acquire(PATIENCE_S, TimeUnit.SECONDS), "a writer may read");
        ensure(!here.readLock().acquire(300, TimeUnit.MILLISECONDS), "others may not");
        there.readLock().release();
        there.writeLock().release();
    }

    static void multiLock(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        InterProcessMultiLock both = new InterProcessMultiLock(one, Arrays.asList(path + "/a", path + "/b"));
        InterProcessMutex single = new InterProcessMutex(two, path + "/b");
        single.acquire();
        ensure(!both.acquire(300, TimeUnit.MILLISECONDS), "one of them is held");
        single.release();
        ensure(both.acquire(PATIENCE_S, TimeUnit.SECONDS), "both are free");
        ensure(!single.acquire(300, TimeUnit.MILLISECONDS), "it is held");
        both.release();
    }

    static void leaderLatch(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        LeaderLatch ann = new LeaderLatch(one, path, "ann");
        LeaderLatch bob = new LeaderLatch(two, path, "bob");
        ann.start();
        eventually("ann leads", ann::hasLeadership);
        bob.start();
        eventually("both take part", () -> ann.getParticipants().size() == 2);
        ensure(!bob.hasLeadership() && bob.getLeader().getId().equals("ann"), "ann leads");
        ann.close();
        ensure(bob.await(PATIENCE_S, TimeUnit.SECONDS), "then bob");
        bob.close();
    }

    static void leaderSelector(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        List<String> led = new CopyOnWriteArrayList<>();
        List<LeaderSelector> selectors = new ArrayList<>();
        for (CuratorFramework client : Arrays.asList(one, two)) {
            String name = client == one ? "one" : "two";
            LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework of) throws Exception {
                    led.add(name);
                    Thread.sleep(50);
                }
            });
            selector.setId(name);
            selector.start();
            selectors.add(selector);
        }
        eventually("each has led", () -> led.size() == 2);
        ensure(led.contains("one") && led.contains("two"), "once each: " + led);
        selectors.forEach(LeaderSelector::close);
    }

    static void barriers(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        DistributedBarrier barrier = new DistributedBarrier(one, path + "/barrier");
        barrier.setBarrier();
        DistributedBarrier there = new DistributedBarrier(two, path + "/barrier");
        // The other client's server may be behind.
        two.sync().forPath(path);
        ensure(!there.waitOnBarrier(300, TimeUnit.MILLISECONDS), "it stands");
        Future<Boolean> passed = THREADS.submit(() -> there.waitOnBarrier(PATIENCE_S, TimeUnit.SECONDS));
        barrier.removeBarrier();
        ensure(finish(passed), "it is gone");
        List<Future<Boolean>> entered = new ArrayList<>();
        for (CuratorFramework client : Arrays.asList(one, two)) {
            entered.add(THREADS.submit(() -> {
                DistributedDoubleBarrier both = new DistributedDoubleBarrier(client, path + "/double", 2);
                return both.enter(PATIENCE_S, TimeUnit.SECONDS) && both.leave(PATIENCE_S, TimeUnit.SECONDS);
            }));
        }
        for (Future<Boolean> work : entered) {
            ensure(finish(work), "both pass");
        }
    }

    static void counters(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        SharedCount here = new SharedCount(one, path + "/shared", 7);
        SharedCount there = new SharedCount(two, path + "/shared", 7);
        here.start();
        there.start();
        here.setCount(8);
        eventually("it is told", () -> there.getCount() == 8);
        ensure(there.trySetCount(there.getVersionedValue(), 9), "it is the newest");
        here.close();
        there.close();
        List<Future<Integer>> works = new ArrayList<>();
        for (CuratorFramework client : Arrays.asList(one, two, one, two)) {
            works.add(THREADS.submit(() -> {
                DistributedAtomicLong number =
                        new DistributedAtomicLong(client, path + "/long", new ExponentialBackoffRetry(5, 20));
                for (int step = 0; step < 10; ) {
                    step += number.increment().succeeded() ? 1 : 0;
                }
                return 0;
            }));
        }
        for (Future<Integer> work : works) {
            finish(work);
        }
        DistributedAtomicLong number = new DistributedAtomicLong(one, path + "/long", new ExponentialBackoffRetry(5, 20));
        one.sync().forPath(path + "/long");
        ensure(number.get().postValue() == 40, "no step is lost: " + number.get().postValue());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @SuppressWarnings("deprecation")
    static void caches(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        two.create().creatingParentsIfNeeded().forPath(path + "/a", bytes("0"));
        // ZooKeeper 3.8 forgets a persistent watch when the same connection sets a plain one at its path, as the older caches do.
        CuratorFramework third = client(20_000);
        CuratorCache cache = CuratorCache.build(third, path);
        PathChildrenCache children = new PathChildrenCache(one, path, true);
        TreeCache tree = new TreeCache(one, path);
        NodeCache node = new NodeCache(one, path + "/a");
        cache.start();
        children.start();
        tree.start();
        node.start();
        for (int n = 1; n <= 10; n++) {
            two.setData().forPath(path + "/a", bytes("" + n));
            two.create().forPath(path + "/a/" + n);
            two.create().forPath(path + "/b" + n);
        }
        two.delete().forPath(path + "/b3");
        // The path itself, ten and nine below it, and ten below one of those.
        eventually("CuratorCache has all of it", () -> cache.size() == 21);
        eventually("and the newest data",
                () -> cache.get(path + "/a").filter(data -> new String(data.getData()).equals("10")).isPresent());
        eventually("PathChildrenCache", () -> children.getCurrentData().size() == 10
                && new String(children.getCurrentData(path + "/a").getData()).equals("10"));
        eventually("TreeCache", () -> tree.getCurrentChildren(path) != null && tree.getCurrentChildren(path).size() == 10
                && tree.getCurrentChildren(path + "/a").size() == 10);
        eventually("NodeCache", () -> new String(node.getCurrentData().getData()).equals("10"));
        two.delete().deletingChildrenIfNeeded().forPath(path + "/a");
        eventually("it is gone", () -> cache.size() == 10 && node.getCurrentData() == null);
        cache.close();
        third.close();
        children.close();
        tree.close();
        node.close();
    }

    static void persistentNodes(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        two.create().creatingParentsIfNeeded().forPath(path);
        PersistentNode node = new PersistentNode(one, CreateMode.EPHEMERAL, false, path + "/node", bytes("x"));
        node.start();
        ensure(node.waitForInitialCreate(PATIENCE_S, TimeUnit.SECONDS), "it is made");
        two.delete().forPath(path + "/node");
        eventually("it is made again", () -> two.checkExists().forPath(path + "/node") != null);
        node.close();
        eventually("it is gone", () -> two.checkExists().forPath(path + "/node") == null);
        GroupMember here = new GroupMember(one, path + "/group", "here");
        GroupMember there = new GroupMember(two, path + "/group", "there");
        here.start();
        there.start();
        eventually("both are members", () -> here.getCurrentMembers().size() == 2);
        there.close();
        eventually("one has left", () -> here.getCurrentMembers().size() == 1);
        here.close();
    }

    static void transactions(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        one.create().creatingParentsIfNeeded().forPath(path, bytes("0"));
        one.transaction().forOperations(
                one.transactionOp().check().withVersion(0).forPath(path),
                one.transactionOp().create().forPath(path + "/a"),
                one.transactionOp().setData().forPath(path, bytes("1")));
        try {
            two.transaction().forOperations(
                    two.transactionOp().create().forPath(path + "/b"),
                    two.transactionOp().check().withVersion(7).forPath(path));
            ensure(false, "another version");
        } catch (KeeperException.BadVersionException refused) {
            ensure(two.checkExists().forPath(path + "/b") == null, "nothing is done");
        }
    }

    static void persistentWatches(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        two.create().creatingParentsIfNeeded().forPath(path);
        // The other one's server may be behind, and would tell of this node too.
        one.sync().forPath(path);
        List<String> events = new CopyOnWriteArrayList<>();
        PersistentWatcher watcher = new PersistentWatcher(one, path, true);
        watcher.getListenable().addListener(event -> events.add(event.getType() + " " + event.getPath()));
        CountDownLatch set = new CountDownLatch(1);
        watcher.getResetListenable().addListener(set::countDown);
        watcher.start();
        ensure(set.await(PATIENCE_S, TimeUnit.SECONDS), "it is set");
        two.create().forPath(path + "/a");
        two.setData().forPath(path + "/a", bytes("1"));
        two.setData().forPath(path + "/a", bytes("2"));
        two.delete().forPath(path + "/a");
        List<String> wanted = Arrays.asList("NodeCreated " + path + "/a", "NodeDataChanged " + path + "/a",
                "NodeDataChanged " + path + "/a", "NodeDeleted " + path + "/a");
        eventually("all events in order, not " + events, () -> events.equals(wanted));
        watcher.close();
    }

    static void ephemerals(CuratorFramework one, CuratorFramework two, String path) throws Exception {
        // The words of a plain user: an ephemeral node is the lock; it goes with its client, and a watcher is told.
        ZooKeeper holder = new ZooKeeper(connect, 4_000, event -> {});
        two.create().creatingParentsIfNeeded().forPath(path);
        eventually("it connects", () -> holder.getState().isConnected());
        holder.create(path + "/lock", bytes("me"), org.apache.zookeeper.ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        try {
            two.create().withMode(CreateMode.EPHEMERAL).forPath(path + "/lock");
            ensure(false, "it is held");
        } catch (KeeperException.NodeExistsException refused) {
            // As it should be.
        }
        CountDownLatch gone = new CountDownLatch(1);
        ensure(two.checkExists().usingWatcher((org.apache.zookeeper.Watcher) event -> gone.countDown())
                .forPath(path + "/lock") != null, "it is held");
        ensure(holder.getEphemerals(path).equals(List.of(path + "/lock")), "its own");
        ensure(two.getZookeeperClient().getZooKeeper().getAllChildrenNumber(path) == 1, "one below");
        holder.close();
        ensure(gone.await(PATIENCE_S, TimeUnit.SECONDS), "the watcher is told");
        one.sync().forPath(path);
        ensure(one.checkExists().forPath(path + "/lock") == null, "it is gone");
    }

    static int recipes() throws Exception {
        CuratorFramework one = client(20_000);
        CuratorFramework two = client(20_000);
        Object[][] recipes = {
            {"ephemerals", (Recipe) Curator::ephemerals},
            {"mutex", (Recipe) Curator::mutex},
            {"contention", (Recipe) Curator::contention},
            {"semaphores", (Recipe) Curator::semaphores},
            {"readWriteLock", (Recipe) Curator::readWriteLock},
            {"multiLock", (Recipe) Curator::multiLock},
            {"leaderLatch", (Recipe) Curator::leaderLatch},
            {"leaderSelector", (Recipe) Curator::leaderSelector},
            {"barriers", (Recipe) Curator::barriers},
            {"counters", (Recipe) Curator::counters},
            {"caches", (Recipe) Curator::caches},
            {"persistentNodes", (Recipe) Curator::persistentNodes},
            {"persistentWatches", (Recipe) Curator::persistentWatches},
            {"transactions", (Recipe) Curator::transactions},
        };
        int failed = 0;
        for (Object[] recipe : recipes) {
            try {
                ((Recipe) recipe[1]).run(one, two, root + "/" + recipe[0]);
                say("ok", recipe[0]);
            } catch (Throwable error) {
                failed = 1;
                error.printStackTrace();
                say("FAILED", recipe[0], error);
            }
        }
        one.close();
        two.close();
        return failed;
    }

    public static void main(String[] arguments) throws Exception {
        connect = arguments[2];
        root = arguments[3];
        int code;
        switch (arguments[1]) {
            case "contend":
                code = contend(arguments[4]);
                break;
            case "hold":
                code = hold();
                break;
            case "latch":
                code = latch();
                break;
            case "retake":
                code = retake();
                break;
            default:
                code = recipes();
        }
        System.exit(code);
    }
}
