/* Sends a line to a port of a VM and prints what comes back.
 *
 *   vmlane run --write-library .
 *   cc -I. echo.c -o echo -L. -lvmlane_vsock -Wl,-rpath,.
 *   ./echo 3 5000 hello
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmlane_vsock.h"

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: echo CID PORT TEXT\n");
        return 2;
    }
    int family = VMCISock_GetAFValue();
    if (family < 0) {
        fprintf(stderr, "no VMCI sockets here\n");
        return 1;
    }
    int fd = socket(family, SOCK_STREAM, 0);
    uint64_t size = 65536;
    if (fd < 0 || setsockopt(fd, family, SO_VMCI_BUFFER_SIZE, &size, sizeof size)) {
        perror("socket");
        return 1;
    }
    struct sockaddr_vm to;
    memset(&to, 0, sizeof to);
    to.svm_family = (sa_family_t)family;
    to.svm_cid = (unsigned)atoi(argv[1]);
    to.svm_port = (unsigned)atoi(argv[2]);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
        perror("connect");
        return 1;
    }
    if (send(fd, argv[3], strlen(argv[3]), 0) < 0 || shutdown(fd, SHUT_WR)) {
        perror("send");
        return 1;
    }
    struct sockaddr_vm own;
    socklen_t len = sizeof own;
    getsockname(fd, (struct sockaddr *)&own, &len);
    fprintf(stderr, "from %u:%u\n", own.svm_cid, own.svm_port);
    char buffer[4096];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0)
        fwrite(buffer, 1, (size_t)got, stdout);
    close(fd);
    return got < 0;
}
