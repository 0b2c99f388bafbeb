/* What the C libraries of hysparse share: the export mark and the codes that functions return. */
#ifndef HYSPARSE_STATUS_H
#define HYSPARSE_STATUS_H

#if defined(__GNUC__)
#define HYSPARSE_API __attribute__((visibility("default")))
#else
#define HYSPARSE_API
#endif

enum {
  HYSPARSE_OK = 0,
  HYSPARSE_END = 1,           /* hysparse_generation_next: the answer is complete */
  HYSPARSE_BAD_ARGUMENT = -1, /* an argument, a file or data is wrong */
  HYSPARSE_UNSUPPORTED = -2,  /* a legal shape that no kernel of this library takes on this GPU */
  HYSPARSE_CUDA_ERROR = -3,
  HYSPARSE_FAILURE = -4,   /* the machine failed: no memory, an I/O error, a bug */
  HYSPARSE_CANCELLED = -5, /* a callback asked to stop */
  HYSPARSE_BUSY = -6       /* another thread is inside a call on this generation */
};

#endif
