/* A stream from a client to a server, and nothing else: what `vmlane bench stream` is held against.
 *
 * tiny server ADDRESS                          accepts one connection, reads it to its end, and says what came
 * tiny client ADDRESS BYTES SECONDS [TIMEOUT]  sends messages of BYTES for SECONDS, then waits for the server's end
 * ADDRESS: unix:PATH, tcp:IPV4:PORT or vsock:CID:PORT. BYTES of a server's reads: the environment's TINY_READ.
 * TIMEOUT: seconds of SO_SNDTIMEO and SO_RCVTIMEO, at a server from TINY_TIMEOUT; none are set without it.
 *
 * In C, with nothing but the system's calls, so that no line, crate or runtime is shared with what it checks.
 * Prints "BYTES SECONDS CPU-SECONDS" on one line. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

union place {
	struct sockaddr any;
	struct sockaddr_un local;
	struct sockaddr_in inet;
	struct sockaddr_vm vm;
};

static void fail(const char *what)
{
	fprintf(stderr, "tiny: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void usage(void)
{
	fprintf(stderr, "usage: tiny server ADDRESS | tiny client ADDRESS BYTES SECONDS [TIMEOUT]\n");
	exit(2);
}

static double now(void)
{
	struct timespec t;
	if (clock_gettime(CLOCK_MONOTONIC, &t))
		fail("clock_gettime");
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu(void)
{
	struct rusage used;
	if (getrusage(RUSAGE_SELF, &used))
		fail("getrusage");
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static socklen_t parse(const char *text, union place *place)
{
	char host[64];
	unsigned port, cid;
	memset(place, 0, sizeof *place);
	if (!strncmp(text, "unix:", 5)) {
		if (strlen(text + 5) >= sizeof place->local.sun_path)
			usage();
		place->local.sun_family = AF_UNIX;
		strcpy(place->local.sun_path, text + 5);
		return sizeof place->local;
	}
	if (sscanf(text, "tcp:%63[0-9.]:%u", host, &port) == 2 && port < 65536) {
		place->inet.sin_family = AF_INET;
		place->inet.sin_port = htons(port);
		if (inet_pton(AF_INET, host, &place->inet.sin_addr) != 1)
			usage();
		return sizeof place->inet;
	}
	if (sscanf(text, "vsock:%u:%u", &cid, &port) == 2) {
		place->vm.svm_family = AF_VSOCK;
		place->vm.svm_cid = cid;
		place->vm.svm_port = port;
		return sizeof place->vm;
	}
	usage();
	return 0;
}

static volatile sig_atomic_t is_over;

static void over(int signal)
{
	is_over = signal;
}

/* A signal ends the sending. A look at the clock for every message would be a system call more for each where the kernel
 * offers no clock to read without one, as under User Mode Linux. */
static void end_after(double seconds)
{
	struct sigaction action = { .sa_handler = over };
	struct itimerval timer = { .it_value = { (time_t)seconds, (suseconds_t)((seconds - (time_t)seconds) * 1e6) } };
	if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &timer, NULL))
		fail("setitimer");
}

static void limit(int fd, const char *seconds)
{
	struct timeval wait = { seconds ? atoi(seconds) : 0, 0 };
	if (!wait.tv_sec)
		return;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait))
		fail("setsockopt");
}

static void tell(double bytes, double from, double began)
{
	printf("%.0f %.6f %.6f\n", bytes, now() - from, cpu() - began);
}

static int serve(const char *address)
{
	union place place;
	socklen_t length = parse(address, &place);
	const char *asked = getenv("TINY_READ");
	size_t most = asked ? strtoul(asked, NULL, 10) : 65536;
	char *room = most && most <= 1 << 24 ? malloc(most) : NULL;
	double bytes = 0, from, began;
	ssize_t got;
	int listener = socket(place.any.sa_family, SOCK_STREAM, 0), fd, on = 1;
	if (!room)
		usage();
	if (listener < 0)
		fail("socket");
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, &place.any, length) || listen(listener, 1))
		fail(address);
	puts("ready");
	fflush(stdout);
	if ((fd = accept(listener, NULL, NULL)) < 0)
		fail("accept");
	limit(fd, getenv("TINY_TIMEOUT"));
	from = now();
	began = cpu();
	while ((got = recv(fd, room, most, 0)) > 0)
		bytes += got;
	if (got < 0)
		fail("recv");
	tell(bytes, from, began);
	return 0;
}

static int ask(const char *address, size_t size, double seconds, const char *timeout)
{
	union place place;
	socklen_t length = parse(address, &place);
	char *message = size && size <= 1 << 24 ? calloc(1, size) : NULL, end;
	double bytes = 0, from, began;
	int fd = socket(place.any.sa_family, SOCK_STREAM, 0);
	if (!message || !(seconds > 0 && seconds < 3600))
		usage();
	if (fd < 0)
		fail("socket");
	if (connect(fd, &place.any, length))
		fail(address);
	limit(fd, timeout);
	from = now();
	began = cpu();
	end_after(seconds);
	while (!is_over) {
		size_t done = 0;
		while (done < size && !is_over) {
			ssize_t sent = send(fd, message + done, size - done, MSG_NOSIGNAL);
			if (sent < 0 && errno != EINTR)
				fail("send");
			if (sent > 0)
				done += sent;
		}
		bytes += done;
	}
	if (shutdown(fd, SHUT_WR))
		fail("shutdown");
	if (recv(fd, &end, 1, 0) != 0)
		fail("the server's end");
	tell(bytes, from, began);
	return 0;
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "server"))
		return serve(words[2]);
	if ((count == 5 || count == 6) && !strcmp(words[1], "client"))
		return ask(words[2], strtoul(words[3], NULL, 10), atof(words[4]), words[5]);
	usage();
	return 2;
}
