<?php
// Symfony's lock with predis, commanded by a line of input each: acquire, release, others, extend. It answers 1 or 0.
//
// Usage: locks.php HOST PORT KEY SECONDS

require 'Symfony/Component/Lock/autoload.php';
require 'Predis/autoload.php';

use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Lock;
use Symfony\Component\Lock\Store\RedisStore;

[, $host, $port, $name, $ttl] = $argv;
$store = new RedisStore(new Predis\Client(['host' => $host, 'port' => (int) $port, 'read_write_timeout' => 10]), (float) $ttl);
// It is not released when this process ends.
$lock = new Lock(new Key($name), $store, (float) $ttl, false);
while (($line = fgets(STDIN)) !== false) {
    try {
        switch (trim($line)) {
            case 'acquire':
                $answer = $lock->acquire();
                break;
            case 'release':
                $lock->release();
                $answer = true;
                break;
            case 'others':
                $store->delete(new Key($name));
                $answer = true;
                break;
            case 'extend':
                $lock->refresh();
                $answer = true;
                break;
        }
        echo $answer ? "1\n" : "0\n";
    } catch (Throwable $error) {
        echo 'error ' . strtok($error->getMessage(), "\n") . "\n";
    }
}
