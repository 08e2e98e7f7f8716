/* Preloaded: the wall clock as a process sees it, shifted by the seconds in a file, now and later.
 *
 * What goes by the monotonic clock sees nothing of it, as when somebody sets a machine's clock.
 * The file, OFFPATH_TEST_CLOCK, is eight bytes, the machine's own order.
 */

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none = 0;
static volatile int64_t *shift_s = &none;

__attribute__((constructor)) static void open_shift(void) {
  const char *path = getenv("OFFPATH_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *memory = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) shift_s = memory;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += *shift_s;
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
