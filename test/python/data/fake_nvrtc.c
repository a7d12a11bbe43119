/* An NVRTC for tests of what surrounds it: it compiles nothing and says so in its log.
 *
 * MAJOR, MINOR: its version. RESULT: of a compilation. MEET: how many compilations have to run at the same time, else
 * each of them fails after ten seconds. */

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#ifndef RESULT
#define RESULT 0
#endif
#ifndef MEET
#define MEET 1
#endif

static const char text[] = "kernel.cu(3): error: made by the fake NVRTC of the tests";
static const int archs[] = {80, 90, 100};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrival = PTHREAD_COND_INITIALIZER;
static int present;

int nvrtcVersion(int *major, int *minor) {
  *major = MAJOR;
  *minor = MINOR;
  return 0;
}
int nvrtcGetNumSupportedArchs(int *count) {
  *count = 3;
  return 0;
}
int nvrtcGetSupportedArchs(int *out) {
  memcpy(out, archs, sizeof archs);
  return 0;
}
const char *nvrtcGetErrorString(int result) { return result == 1 ? "NVRTC_ERROR_OUT_OF_MEMORY" : "NVRTC_ERROR_COMPILATION"; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names) {
  *program = &present;
  return source[0] ? 0 : 1;
}
int nvrtcDestroyProgram(void **program) {
  *program = 0;
  return 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 10;
  pthread_mutex_lock(&mutex);
  int waited = ++present >= MEET ? pthread_cond_broadcast(&arrival) : 0;
  while (present < MEET && waited == 0)
    waited = pthread_cond_timedwait(&arrival, &mutex, &end);
  pthread_mutex_unlock(&mutex);
  return waited ? 6 : RESULT;
}

#define BYTES(what, content)                                                                                           \
  int nvrtcGet##what##Size(void *program, size_t *size) {                                                              \
    *size = sizeof(content);                                                                                           \
    return 0;                                                                                                          \
  }                                                                                                                    \
  int nvrtcGet##what(void *program, char *out) {                                                                       \
    memcpy(out, content, sizeof(content));                                                                             \
    return 0;                                                                                                          \
  }
BYTES(ProgramLog, text)
BYTES(PTX, "fake ptx")
BYTES(CUBIN, "fake cubin")
