// The named atomic operations: the only place that spells a memory order. Each call site says what becomes visible to
// whom. Shared words are plain integers in the mapping; these helpers access them through compiler atomics, which are
// lock-free and address-free for 4 and 8 bytes (asserted below), so they work between processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shmrb {

static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared 32-bit words need lock-free atomics");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared 64-bit words need lock-free atomics");

namespace order {

// Reads a word and everything its publisher stored before it.
template <typename T>
inline T observe(const T* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

// Stores a word after everything this thread stored before.
template <typename T>
inline void publish(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

// Reads a word whose value alone matters (a hint, a counter, the second look behind a fence).
template <typename T>
inline T peek(const T* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

// The same for floating-point words, which the compiler's atomics do not take.
template <typename T>
inline T peek_value(const T* word) {
  T value;
  __atomic_load(word, &value, __ATOMIC_RELAXED);
  return value;
}

template <typename T>
inline void put_value(T* word, T value) {
  __atomic_store(word, &value, __ATOMIC_RELAXED);
}

// Stores a word that the lock around it, or a later publish, makes visible.
template <typename T>
inline void put(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

// Takes a word: `expected` becomes `desired`, or `expected` is set to what stands there.
template <typename T>
inline bool claim(T* word, T& expected, T desired) {
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

template <typename T>
inline T swap(T* word, T value) {
  return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
}

// Adds to a counter that orders nothing.
template <typename T>
inline T bump(T* word, T amount) {
  return __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
}

// Between marking a slot busy and its first payload store.
inline void before_payload() { __atomic_thread_fence(__ATOMIC_RELEASE); }

// Between a reader's last payload load and its second look at the word.
inline void after_payload() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

// Between a change and the look at who waits for it, and between "I wait" and the look at what is waited for.
inline void full_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not model fences: copy by relaxed bytes so that it sees atomics on both sides.
inline void copy_payload(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<unsigned char*>(to);
  auto* source = static_cast<const unsigned char*>(from);
  for (size_t i = 0; i < bytes; ++i) put(target + i, peek(source + i));
}
#else
inline void copy_payload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace order
}  // namespace shmrb
