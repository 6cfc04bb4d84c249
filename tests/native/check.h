// A test is a function that CHECKs; main.cc runs those whose name holds the given word. A failed CHECK ends the program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

// How much of the long run this is: 1 with --long. Sanitizers slow everything down, so they get less.
inline double& effort() {
  static double value = 0;
  return value;
}

inline int64_t rounds(int64_t in_ci, int64_t in_long_run) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  in_ci /= 8;
  in_long_run /= 8;
#endif
  return effort() > 0 ? in_long_run : in_ci;
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: expected %s\n", file, line, what);
  std::fflush(stderr);
  std::abort();
}

// Starts one thread a task and waits for all of them.
inline void together(const std::vector<std::function<void()>>& tasks) {
  std::vector<std::thread> threads;
  for (const auto& task : tasks) threads.emplace_back(task);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace check

#define CHECK(condition) \
  do {                   \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (0)

#define TEST(name)                                         \
  static void test_##name();                               \
  static const check::Register register_##name(#name, test_##name); \
  static void test_##name()
