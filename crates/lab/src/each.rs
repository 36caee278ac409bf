//! Tests for each engine, by one macro.

/// A test of each of these checks, functions of an [`Engine`](crate::Engine), for each engine.
///
/// ```
/// whimbrel_lab::for_each_engine! {
///     keys_arrive
/// }
///
/// fn keys_arrive(engine: whimbrel_lab::Engine) {}
/// # fn main() {}
/// ```
///
/// makes the tests `keys_arrive::redis_7_0` and `keys_arrive::valkey_9_1`, the two ends of [`Engine::ALL`],
/// and `keys_arrive::between::redis_8_0` and `keys_arrive::between::valkey_8_1`, which `./dev test all` runs,
/// and `./dev test` does not.
///
/// If the engines between differ, all four belong to `./dev test`: `on every: keys_arrive` has no `between`.
/// Some engines alone are named, oldest first: `on Redis60 Redis80: keys_arrive`. `async` before all this
/// takes async functions, which run on tokio's runtime with several threads; the crate that uses it needs
/// tokio.
///
/// [`Engine::ALL`]: crate::Engine::ALL
#[macro_export]
macro_rules! for_each_engine {
    (async on every: $($check:ident)+) => {
        $crate::for_each_engine! { async on Redis70 Redis80 Valkey81 Valkey91: $($check)+ }
    };
    (on every: $($check:ident)+) => {
        $crate::for_each_engine! { on Redis70 Redis80 Valkey81 Valkey91: $($check)+ }
    };
    (async on $($engine:ident)+ : $($check:ident)+) => {
        $crate::for_each_engine! { @on async [$($engine)+] [] $($check)+ }
    };
    (on $($engine:ident)+ : $($check:ident)+) => {
        $crate::for_each_engine! { @on sync [$($engine)+] [] $($check)+ }
    };
    (async $($check:ident)+) => {
        $crate::for_each_engine! { @on async [Redis70 Valkey91] [Redis80 Valkey81] $($check)+ }
    };
    // One module for each check.
    (@on $kind:tt $engines:tt $between:tt $($check:ident)+) => {
        $(
            mod $check {
                use super::$check as check;
                $crate::for_each_engine! { @tests $kind $engines }
                $crate::for_each_engine! { @between $kind $between }
            }
        )+
    };
    (@between $kind:tt []) => {};
    (@between $kind:tt $engines:tt) => {
        mod between {
            use super::check;
            $crate::for_each_engine! { @tests $kind $engines }
        }
    };
    (@tests $kind:tt [$($engine:ident)+]) => {
        $( $crate::for_each_engine! { @named $kind $engine } )+
    };
    (@named $kind:tt Redis60) => { $crate::for_each_engine! { @test $kind redis_6_0 Redis60 } };
    (@named $kind:tt Redis62) => { $crate::for_each_engine! { @test $kind redis_6_2 Redis62 } };
    (@named $kind:tt Redis70) => { $crate::for_each_engine! { @test $kind redis_7_0 Redis70 } };
    (@named $kind:tt Redis72) => { $crate::for_each_engine! { @test $kind redis_7_2 Redis72 } };
    (@named $kind:tt Redis74) => { $crate::for_each_engine! { @test $kind redis_7_4 Redis74 } };
    (@named $kind:tt Redis80) => { $crate::for_each_engine! { @test $kind redis_8_0 Redis80 } };
    (@named $kind:tt Redis82) => { $crate::for_each_engine! { @test $kind redis_8_2 Redis82 } };
    (@named $kind:tt Redis86) => { $crate::for_each_engine! { @test $kind redis_8_6 Redis86 } };
    (@named $kind:tt Valkey80) => { $crate::for_each_engine! { @test $kind valkey_8_0 Valkey80 } };
    (@named $kind:tt Valkey81) => { $crate::for_each_engine! { @test $kind valkey_8_1 Valkey81 } };
    (@named $kind:tt Valkey90) => { $crate::for_each_engine! { @test $kind valkey_9_0 Valkey90 } };
    (@named $kind:tt Valkey91) => { $crate::for_each_engine! { @test $kind valkey_9_1 Valkey91 } };
    (@test async $name:ident $engine:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            check($crate::Engine::$engine).await;
        }
    };
    (@test sync $name:ident $engine:ident) => {
        #[test]
        fn $name() {
            check($crate::Engine::$engine);
        }
    };
    ($($check:ident)+) => {
        $crate::for_each_engine! { @on sync [Redis70 Valkey91] [Redis80 Valkey81] $($check)+ }
    };
}
