// Reverb's rate limiter (rate_limiter.cc of Reverb 0.14, arithmetic only), read and changed under the control lock, so
// that a client's death takes no credit along.
//   inserts = rows reserved − uncounted;  deletes = inserts − live records
#pragma once

#include "sizes.h"

namespace shmrb {

inline int64_t counted_inserts(const View& view) {
  return reserved_rows(view) - order::peek(&view.control->limiter.uncounted);
}

inline bool limits_apply(const View& view) {
  const LimiterBlock& limiter = view.control->limiter;
  return view.has(kLimiter) && order::peek(&limiter.enabled) && !order::peek(&limiter.lifted);
}

// REQUIRES: the control lock is held.
inline bool may_insert(const View& view, int64_t rows) {
  if (!limits_apply(view)) return true;
  LimiterBlock& limiter = view.control->limiter;
  settle_holes(view, true);
  if (live_records(view) + rows <= limiter.min_size) return true;  // the warm-up is free
  double after = static_cast<double>(counted_inserts(view) + rows) * limiter.samples_per_insert;
  int64_t samples = order::peek(&limiter.samples);
  if (view.has(kConsumption)) samples -= view.consumption().pending();  // what is held keeps its slot
  if (after - static_cast<double>(samples) <= limiter.max_diff) return true;
  auto opener = static_cast<uint32_t>(order::peek(&limiter.opened_by));
  return opener != 0 && view.liveness.alive(opener);
}

// REQUIRES: the control lock is held.
inline bool may_sample(const View& view, int64_t records) {
  if (!limits_apply(view)) return true;
  LimiterBlock& limiter = view.control->limiter;
  settle_holes(view, true);
  if (live_records(view) < limiter.min_size) return false;
  double owed = static_cast<double>(counted_inserts(view)) * limiter.samples_per_insert;
  return owed - static_cast<double>(order::peek(&limiter.samples)) - static_cast<double>(records) >= limiter.min_diff;
}

// Charges a draw before it is made; a draw that fails gives the charge back.
inline Outcome charge(const View& view, int64_t records, int64_t deadline_ns) {
  if (!limits_apply(view) || records == 0) return {};
  if (!view.acts()) return {kReadOnly, 0, kNothing, 0, 0};
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!may_sample(view, records)) return {kLimited, 0, kNothing, 0, 0};
  if (!limits_apply(view)) return {};  // lifted while we waited for the lock
  order::bump(&view.control->limiter.samples, records);
  stopping::at(stopping::kCharged);
  return {kOk, records, kNothing, 0, 0};
}

// After the draw: a charge that bought nothing goes back. A draw that found nothing legal opens the insert side until a
// draw succeeds, else writers and readers could wait for each other.
inline void settle_charge(const View& view, int64_t charged, bool drawn, bool nothing_legal) {
  if (!view.has(kLimiter) || !view.writable) return;
  LimiterBlock& limiter = view.control->limiter;
  if (!drawn && charged != 0) order::bump(&limiter.samples, -charged);
  if (nothing_legal && order::peek(&limiter.opened_by) != view.token) {
    order::publish(&limiter.opened_by, uint64_t{view.token});
    order::bump(&limiter.opened_times, uint64_t{1});
  } else if (drawn && order::peek(&limiter.opened_by) != 0) {
    order::publish(&limiter.opened_by, uint64_t{0});
  }
}

}  // namespace shmrb
