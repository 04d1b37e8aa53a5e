/* Shuts a mounted ext4 down, as a power failure does: the kernel writes no more cached data, not even its journal. Stops a process
 * first, if one is named. Needs root.
 * usage: shutdown DIRECTORY [PROCESS] */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t)
#define GOING_DOWN_WITHOUT_FLUSHING_THE_LOG 2

int main(int count, char **words) {
    uint32_t how = GOING_DOWN_WITHOUT_FLUSHING_THE_LOG;
    int directory = count > 1 ? open(words[1], O_RDONLY) : -1;
    if (directory < 0 || (count > 2 && kill(atoi(words[2]), SIGSTOP) != 0) || ioctl(directory, EXT4_IOC_SHUTDOWN, &how) != 0) {
        perror("shutdown");
        return 1;
    }
    return 0;
}
