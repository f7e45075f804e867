; History of the calls of a program: beside other processes, are calls with the team faster, or calls alone?
;
; A worker that the system puts aside in the middle of a chunk costs more time than it saves.  So once regions waited for such
; workers, calls of both ways are compared over windows of time, and the faster way is kept.  The other way is tried again from
; time to time: a trial.
;
;   field  of %history, in ticks of @ticks
;   0      way: 0 if the team shares calls, 1 if they run alone
;   1      time left before the next trial
;   2      of this window: sum of the squares of the calls' times (a double)
;   3      of this window: sum of their times
;   4      of this window: time of the fastest
;   5      @preemptions before this window
;   6, 7   mean time of calls with the team and alone; 0 if unknown
;   8      interval between trials
;   9      1 if workers were put aside in the last full window with the team
;   10     end of the last window
;   11     age of the mean: full windows since the way or the load changed, at most 3
;
; A mean weights each call with its time: a call that waits for a worker counts for as long as it waits, so of two ways with
; equal averages the steadier one is kept.  Calls at the same time may lose updates, which only blurs the means.

; Begin a call of a program: set the number of threads that share it, and return its start time, 0 if it is not measured.
; Another call under way gets fewer threads, and workers spin for longer.  A trial alone sets its deadline instead, as a negative
; number: once it has taken longer than calls with the team do, it is lost, and the team shares what is left.
define i64 @tilewright_begin_call(ptr %history, ptr %threads) {
entry:
  %others32 = atomicrmw add ptr @calls, i32 1 monotonic
  %others = sext i32 %others32 to i64
  %team = call i64 @parameter(i64 0)
  %left = sub i64 %team, %others
  %way = call i64 @get(ptr %history, i64 0)
  %is_alone = icmp ne i64 %way, 0
  %wanted = select i1 %is_alone, i64 1, i64 %left
  %count = call i64 @llvm.smax.i64(i64 %wanted, i64 1)
  store i64 %count, ptr %threads
  %has_all = icmp eq i64 %left, %team
  %can_share = icmp sgt i64 %team, 1
  %is_measured = and i1 %has_all, %can_share
  br i1 %is_measured, label %measured, label %other

measured:
  %now = call i64 @ticks()
  %is_trial = call i1 @is_slower(ptr %history)
  %is_trial_alone = and i1 %is_alone, %is_trial
  br i1 %is_trial_alone, label %trial, label %no_trial

no_trial:
  br i1 %is_alone, label %begun, label %shared

shared:
  call void @borrow_workers(i64 %team, i64 %now)
  br label %begun

trial:
  %usual = call i64 @mean_cost(ptr %history, i64 0)
  %deadline = add i64 %now, %usual
  %limit = sub i64 0, %deadline
  store i64 %limit, ptr %threads
  br label %begun

begun:
  ret i64 %now

other:
  ret i64 0
}

; End a call of a program, and the window if it is full, or if it is a trial that is lost.
define void @tilewright_end_call(ptr %history, i64 %start) {
entry:
  %is_measured = icmp ne i64 %start, 0
  call void @return_workers(i1 %is_measured)
  %before = atomicrmw sub ptr @calls, i32 1 monotonic
  br i1 %is_measured, label %measured, label %done

measured:
  %now = call i64 @ticks()
  store atomic i64 %now, ptr @last_end monotonic, align 8
  %duration = sub i64 %now, %start
  call void @add_call(ptr %history, i64 %duration)
  %is_full = call i1 @is_full(ptr %history)
  %is_lost = call i1 @is_lost(ptr %history)
  %ends = or i1 %is_full, %is_lost
  br i1 %ends, label %decide, label %done

decide:
  call void @end_window(ptr %history, i64 %now, i1 %is_full)
  br label %done

done:
  ret void
}

; Add a call to the window.
define internal void @add_call(ptr %history, i64 %duration) {
  %squares_before_bits = call i64 @get(ptr %history, i64 2)
  %squares_before = bitcast i64 %squares_before_bits to double
  %ticks = uitofp i64 %duration to double
  %square = fmul double %ticks, %ticks
  %squares = fadd double %squares_before, %square
  %squares_bits = bitcast double %squares to i64
  call void @set(ptr %history, i64 2, i64 %squares_bits)
  %time_before = call i64 @get(ptr %history, i64 3)
  %time = add i64 %time_before, %duration
  call void @set(ptr %history, i64 3, i64 %time)
  %fastest_before = call i64 @get(ptr %history, i64 4)
  %is_first = icmp eq i64 %time_before, 0
  %fastest_or = call i64 @llvm.umin.i64(i64 %fastest_before, i64 %duration)
  %fastest = select i1 %is_first, i64 %duration, i64 %fastest_or
  call void @set(ptr %history, i64 4, i64 %fastest)
  ret void
}

; Return True if the window is long enough.  A call or two show little, unless even the fastest is slow.
define internal i1 @is_full(ptr %history) {
  %time = call i64 @get(ptr %history, i64 3)
  %fastest = call i64 @get(ptr %history, i64 4)
  %is_slow = call i1 @is_slow(ptr %history)
  %some_calls = shl i64 %fastest, 2
  %least = select i1 %is_slow, i64 0, i64 %some_calls
  %window = call i64 @parameter(i64 5)
  %enough = call i64 @llvm.umax.i64(i64 %window, i64 %least)
  %is_full = icmp uge i64 %time, %enough
  ret i1 %is_full
}

; Return True for a trial whose fastest call is slower than the other way, or whose mean is and workers were put aside.  The first
; call of a trial with the team does not tell: workers are asleep.
define internal i1 @is_lost(ptr %history) {
  %way = call i64 @get(ptr %history, i64 0)
  %is_alone = icmp ne i64 %way, 0
  %time = call i64 @get(ptr %history, i64 3)
  %fastest = call i64 @get(ptr %history, i64 4)
  %has_more_calls = icmp ugt i64 %time, %fastest
  %tells = or i1 %is_alone, %has_more_calls
  %is_trial = call i1 @is_slower(ptr %history)
  %is_slow = call i1 @is_slow(ptr %history)
  %is_slowed = call i1 @is_slowed(ptr %history)
  %is_hopeless = or i1 %is_slow, %is_slowed
  %is_lost_trial = and i1 %is_trial, %is_hopeless
  %is_lost = and i1 %is_lost_trial, %tells
  ret i1 %is_lost
}

; End the window: learn from it if it is full, go on as has been faster, or try the other way if that is due.
define internal void @end_window(ptr %history, i64 %now, i1 %is_full) {
entry:
  %way = call i64 @get(ptr %history, i64 0)
  %is_shared = icmp eq i64 %way, 0
  %time = call i64 @get(ptr %history, i64 3)
  %is_trial = call i1 @is_slower(ptr %history)
  %is_loaded = call i1 @is_loaded(ptr %history)
  %is_quiet = xor i1 %is_loaded, 1
  %load_comes = call i1 @load_comes(ptr %history)
  %cost_before = call i64 @mean_cost(ptr %history, i64 %way)
  %is_first = icmp eq i64 %cost_before, -1
  br i1 %is_full, label %learn, label %look

learn:
  call void @learn(ptr %history)
  br label %look

look:
  call void @set(ptr %history, i64 2, i64 0)
  call void @set(ptr %history, i64 3, i64 0)
  %preemptions = load atomic i64, ptr @preemptions monotonic, align 8
  call void @set(ptr %history, i64 5, i64 %preemptions)
  %last_end = call i64 @get(ptr %history, i64 10)
  call void @set(ptr %history, i64 10, i64 %now)
  %since = sub i64 %now, %last_end
  %passed = select i1 %is_shared, i64 %time, i64 %since   ; trials alone are slow: few calls are; load may end between calls
  %left_before = call i64 @get(ptr %history, i64 1)
  %left = sub i64 %left_before, %passed
  call void @set(ptr %history, i64 1, i64 %left)
  %is_worse = call i1 @is_slower(ptr %history)
  %interval = call i64 @get(ptr %history, i64 8)
  %is_news = xor i1 %is_trial, %is_worse                  ; what was slower is faster now
  %new_interval = select i1 %is_news, i64 0, i64 %interval
  call void @set(ptr %history, i64 8, i64 %new_interval)
  br i1 %is_worse, label %back, label %best

best:
  %is_shared_quietly = and i1 %is_shared, %is_quiet
  %is_not_due = icmp sgt i64 %left, 0
  %tells_little = or i1 %is_first, %load_comes            ; first calls touch their memory
  %has_no_reason = or i1 %is_shared_quietly, %tells_little
  %stays = or i1 %has_no_reason, %is_not_due
  br i1 %stays, label %done, label %try

try:
  call void @schedule_trial(ptr %history, i64 %time)
  br label %change

back:
  %old = select i1 %is_trial, i64 3, i64 0                ; after a lost trial, all is as it was before
  br label %change

change:
  %age = phi i64 [ 0, %try ], [ %old, %back ]
  call void @set(ptr %history, i64 11, i64 %age)
  %other = xor i64 %way, 1
  call void @set(ptr %history, i64 0, i64 %other)
  br label %done

done:
  ret void
}

; Update the mean with this window: all that is new counts at first, then a half, a quarter, an eighth; all of it again once even
; the fastest call is slow, or load has gone; nothing of it while load comes, since the system moves threads then.
define internal void @learn(ptr %history) {
  %way = call i64 @get(ptr %history, i64 0)
  %is_shared = icmp eq i64 %way, 0
  %slot = add i64 %way, 6
  %old = call i64 @get(ptr %history, i64 %slot)
  %new = call i64 @window_mean(ptr %history)
  %age = call i64 @get(ptr %history, i64 11)
  %is_slow = call i1 @is_slow(ptr %history)
  %weight = select i1 %is_slow, i64 0, i64 %age
  %difference = sub i64 %new, %old
  %part = ashr i64 %difference, %weight
  %blended = add i64 %old, %part
  %load_comes = call i1 @load_comes(ptr %history)
  %kept = select i1 %load_comes, i64 %old, i64 %blended
  %is_loaded = call i1 @is_loaded(ptr %history)
  %is_quiet = xor i1 %is_loaded, 1
  %load_before = call i64 @get(ptr %history, i64 9)
  %was_loaded = icmp ne i64 %load_before, 0
  %is_shared_quietly = and i1 %is_shared, %is_quiet
  %load_goes = and i1 %is_shared_quietly, %was_loaded
  %is_unknown = icmp eq i64 %old, 0
  %begins = or i1 %is_unknown, %load_goes
  %mean = select i1 %begins, i64 %new, i64 %kept
  call void @set(ptr %history, i64 %slot, i64 %mean)
  %older = add i64 %age, 1
  %at_most_three = call i64 @llvm.smin.i64(i64 %older, i64 3)
  %counts_for_little = or i1 %load_comes, %is_unknown
  %new_age = select i1 %counts_for_little, i64 0, i64 %at_most_three
  call void @set(ptr %history, i64 11, i64 %new_age)
  %load_now = zext i1 %is_loaded to i64
  %load = select i1 %is_shared, i64 %load_now, i64 %load_before
  call void @set(ptr %history, i64 9, i64 %load)
  ret void
}

; Set the time until the trial after the one that begins, whose interval doubles while trials are lost.  `time` is that of the
; last window.  With the team it is at least 16 windows, and 128 calls, so that a lost trial of one call is less than a hundredth
; of all; alone, 4 windows.
define internal void @schedule_trial(ptr %history, i64 %time) {
  %way = call i64 @get(ptr %history, i64 0)
  %is_shared = icmp eq i64 %way, 0
  %interval = call i64 @get(ptr %history, i64 8)
  %doubled = shl i64 %interval, 1
  %shortest = call i64 @parameter(i64 6)
  %longest = call i64 @parameter(i64 7)
  %at_least = call i64 @llvm.smax.i64(i64 %doubled, i64 %shortest)
  %new_interval = call i64 @llvm.smin.i64(i64 %at_least, i64 %longest)
  call void @set(ptr %history, i64 8, i64 %new_interval)
  %fastest = call i64 @get(ptr %history, i64 4)
  %calls = shl i64 %fastest, 7
  %long_windows = shl i64 %time, 4
  %most = call i64 @llvm.smax.i64(i64 %long_windows, i64 %calls)
  %short_windows = shl i64 %time, 2
  %windows = select i1 %is_shared, i64 %most, i64 %short_windows
  %left = call i64 @llvm.smax.i64(i64 %windows, i64 %new_interval)
  call void @set(ptr %history, i64 1, i64 %left)
  ret void
}

; Return True if the present way is the slower one, as far as is known: calls are a trial.
define internal i1 @is_slower(ptr %history) {
  %way = call i64 @get(ptr %history, i64 0)
  %other = xor i64 %way, 1
  %cost = call i64 @mean_cost(ptr %history, i64 %way)
  %other_cost = call i64 @mean_cost(ptr %history, i64 %other)
  %is_slower = icmp ugt i64 %cost, %other_cost
  ret i1 %is_slower
}

; Return True if even the fastest call of the window is slower than the other way.
define internal i1 @is_slow(ptr %history) {
  %fastest = call i64 @get(ptr %history, i64 4)
  %is_slow = call i1 @exceeds_other(ptr %history, i64 %fastest)
  ret i1 %is_slow
}

; Return True if workers were put aside in the window, and its mean is slower than the other way.
define internal i1 @is_slowed(ptr %history) {
  %mean = call i64 @window_mean(ptr %history)
  %is_slow = call i1 @exceeds_other(ptr %history, i64 %mean)
  %is_loaded = call i1 @is_loaded(ptr %history)
  %is_slowed = and i1 %is_slow, %is_loaded
  ret i1 %is_slowed
}

; Return True if a time of the present way costs more than the mean of the other way.
define internal i1 @exceeds_other(ptr %history, i64 %time) {
  %way = call i64 @get(ptr %history, i64 0)
  %other = xor i64 %way, 1
  %cost = call i64 @cost(i64 %time, i64 %way)
  %other_cost = call i64 @mean_cost(ptr %history, i64 %other)
  %exceeds = icmp ugt i64 %cost, %other_cost
  ret i1 %exceeds
}

; Return True if workers were put aside in the window; one time happens on any machine.
define internal i1 @is_loaded(ptr %history) {
  %preemptions = load atomic i64, ptr @preemptions monotonic, align 8
  %before = call i64 @get(ptr %history, i64 5)
  %recent = sub i64 %preemptions, %before
  %is_loaded = icmp ugt i64 %recent, 1
  ret i1 %is_loaded
}

; Return True for the first window with the team in which workers were put aside, after at least three in which none was.
define internal i1 @load_comes(ptr %history) {
  %way = call i64 @get(ptr %history, i64 0)
  %is_shared = icmp eq i64 %way, 0
  %load_before = call i64 @get(ptr %history, i64 9)
  %was_quiet = icmp eq i64 %load_before, 0
  %is_loaded = call i1 @is_loaded(ptr %history)
  %is_new = and i1 %is_loaded, %was_quiet
  %age = call i64 @get(ptr %history, i64 11)
  %is_old = icmp eq i64 %age, 3
  %is_shared_long = and i1 %is_shared, %is_old
  %load_comes = and i1 %is_new, %is_shared_long
  ret i1 %load_comes
}

; Return the mean time of the calls of the window, weighted with their times.
define internal i64 @window_mean(ptr %history) {
  %squares_bits = call i64 @get(ptr %history, i64 2)
  %squares = bitcast i64 %squares_bits to double
  %time = call i64 @get(ptr %history, i64 3)
  %all_ticks = uitofp i64 %time to double
  %mean = fdiv double %squares, %all_ticks
  %whole_mean = fptoui double %mean to i64
  ret i64 %whole_mean
}

; Return what the mean time of a way counts.
define internal i64 @mean_cost(ptr %history, i64 %way) {
  %slot = add i64 %way, 6
  %mean = call i64 @get(ptr %history, i64 %slot)
  %cost = call i64 @cost(i64 %mean, i64 %way)
  ret i64 %cost
}

; Return what a time counts: the largest number if it is 0 (unknown), an eighth more for the team, which takes CPUs from others.
define internal i64 @cost(i64 %time, i64 %way) {
  %is_alone = icmp ne i64 %way, 0
  %eighth = lshr i64 %time, 3
  %more = select i1 %is_alone, i64 0, i64 %eighth
  %all = add i64 %time, %more
  %cost = sub i64 %all, 1
  ret i64 %cost
}

define internal i64 @get(ptr %history, i64 %field) {
  %p = getelementptr i64, ptr %history, i64 %field
  %v = load atomic i64, ptr %p monotonic, align 8
  ret i64 %v
}

define internal void @set(ptr %history, i64 %field, i64 %v) {
  %p = getelementptr i64, ptr %history, i64 %field
  store atomic i64 %v, ptr %p monotonic, align 8
  ret void
}
