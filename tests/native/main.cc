// native_tests [--long] [word]: runs the tests whose name holds the word, in the order of their files.
#include <chrono>
#include <cstring>

#include "check.h"

int main(int count, char** words) {
  const char* wanted = "";
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--long") == 0) {
      check::effort() = 1;
    } else {
      wanted = words[i];
    }
  }
  int ran = 0;
  for (const check::Test& test : check::tests()) {
    if (!std::strstr(test.name, wanted)) continue;
    auto start = std::chrono::steady_clock::now();
    test.run();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-60s %.2f s\n", test.name, took.count());
    std::fflush(stdout);
    ++ran;
  }
  std::printf("%d passed\n", ran);
  return ran == 0;
}
